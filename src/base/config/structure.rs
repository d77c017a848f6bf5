//! `Debug` of a refused setting.

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
                Number { setting, value, why },
                Size { setting, value, most, why },
                Foreign { what, name },
                NoJob { setting, why },
                SkipTooFar { index, next },
                Unsupported { setting, why },
                RangeBackwards { table, start, end },
                Family { fault, name, why },
                Engine { why },
                WatermarkInUse { name },
                GateCycle { consumer, upstream },
                UpstreamEnded { consumer, upstream, next, last_processed },
                Stage { fault, names, why },
                OwnThread {},
            ]
        )
    }
}
