//! `{:?}` and `{:#?}` of a setting that was refused.

use super::ConfigError;
use crate::base::structure::structure;
use std::fmt;

impl fmt::Debug for ConfigError {
    #[expect(clippy::too_many_lines, reason = "it is a list with a line for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{self}");
        }
        structure!(
            self,
            f,
            [Group, Limit],
            [
                MaxProcessingZero {},
                MaxEffects { bytes },
                Foreign { what, name },
                SearchAheadZero {},
                MostZero {},
                MaxReadAheadZero {},
                StartAtMax {},
                StopAtMax {},
                MoveToMax {},
                Reason { length },
                SkipTooFar { index, next },
                MaxAttemptsZero {},
                Jitter { value },
                ParkBudgetZero {},
                ParkUnsupported {},
                MaxCrashesZero {},
                MaxCrashesUnsupported {},
                ThreadsZero {},
                ThreadsWithoutDeferred {},
                EffectsWithoutTransactional {},
                BatchSize { max, max_processing },
                MaxUnwrittenZero {},
                UnwrittenWithoutWriting {},
                PollEveryZero {},
                AttemptTimeoutZero {},
                OnStallZero {},
                Name { what, length },
                RangeBackwards { table, start, end },
                CodecName { name },
                FamilyMissing { name },
                FamilyUnknown { name },
                FamilyReserved { name },
                WatermarkInUse { name },
                GateCycle { consumer, upstream },
                UpstreamEnded { consumer, upstream, next, last_processed },
                NoStages {},
                StageTwice { name },
                StageUnknown { stage, name },
                StageForeign { name },
                JobId { length },
                JobIdReserved { id },
                Signature { length },
                JobKey { length },
                CostZero {},
                FingerprintField { field },
                Fraction { value },
                ProgressNote { length },
                MetaKey { length },
                MetaSize { bytes },
                JsonDepth {},
                JobKind { length },
                RunAt {},
                LeaseZero {},
                HealAfterZero {},
                GateEveryZero { gate },
                EveryZero {},
                PeriodicTwice { name },
                PeriodicJob { name },
                CatchUpSkips { name },
                CronFields { expression, fields },
                CronField { expression, field, value, reason },
                CronNever { expression },
                TimeZone { name },
                MaxWaitingZero {},
                QueueOptions { name },
                HandlerTwice { kind },
                NoHandlers {},
                Factor { value },
                OwnThread {},
            ]
        )
    }
}
