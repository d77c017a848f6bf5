//! What a consumer keeps of its progress, and what the next life makes of it.

mod crashes;
mod done_ahead;
mod lives;
mod parked;
mod refused_adds;
mod saved;
mod standby;
mod transactional;
mod writing;
