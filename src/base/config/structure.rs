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
                MaxProcessingZero {},
                MaxEffects { bytes },
                Foreign { what, name },
                SearchAheadZero {},
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
                JobKind { length },
                RunAt {},
                LeaseZero {},
                QueueOptions { name },
                HandlerTwice { kind },
                NoHandlers {},
                Factor { value },
                OwnThread {},
            ]
        )
    }
}
