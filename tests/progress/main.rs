//! Progress: the records that a consumer keeps, and how the next life uses them.

mod by_hand;
mod crashes;
mod damaged;
mod done_ahead;
mod lives;
mod parked;
mod refused_adds;
mod refused_pushes;
mod saved;
mod standby;
mod transactional;
mod writing;
