//! `{:?}` and `{:#?}` of a setting that was refused.

use super::ConfigError;
use crate::base::structure::structure;
use std::fmt;

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{self}");
        }
        structure!(
            self,
            f,
            [],
            [
                Zero { setting, why },
                Length { what, length, most, why },
                MaxEffects { bytes },
                Foreign { what, name },
                StartAtMax {},
                StopAtMax {},
                MoveToMax {},
                SkipTooFar { index, next },
                Jitter { value },
                Unsupported { setting, why },
                ThreadsWithoutDeferred {},
                EffectsWithoutTransactional {},
                BatchSize { max, max_processing },
                UnwrittenWithoutWriting {},
                RangeBackwards { table, start, end },
                FamilyMissing { name },
                FamilyUnknown { name },
                FamilyReserved { name },
                Engine { why },
                SqlUnsupported {},
                WatermarkInUse { name },
                GateCycle { consumer, upstream },
                UpstreamEnded { consumer, upstream, next, last_processed },
                NoStages {},
                StageTwice { name },
                StageUnknown { stage, name },
                StageForeign { name },
                JobIdReserved { id },
                FingerprintField { field },
                Fraction { value },
                Nul { subject },
                MetaSize { bytes },
                JsonDepth {},
                RunAt {},
                Cursor { queue, state },
                PeriodicTwice { name },
                PeriodicJob { name },
                CatchUpSkips { name },
                CronFields { expression, fields },
                CronField { expression, field, value, reason },
                CronNever { expression },
                TimeZone { name },
                QueueOptions { name },
                HandlerTwice { kind },
                TimeoutWithoutHandler { kind },
                NoHandlers {},
                LimitEmpty { limit },
                LimitTwice { limit },
                LimitMissing { kind, queue, job },
                KindForeign { kind, returned },
                GroupEmpty {},
                GroupQueueTwice { queue },
                GroupKindTwice { kind, first, second },
                GroupQueueUnknown { queue },
                GroupKindUnknown { kind },
                GroupClock { queue },
                GroupWeight { queue, weight },
                Factor { value },
                OwnThread {},
            ]
        )
    }
}
