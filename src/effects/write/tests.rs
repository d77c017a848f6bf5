//! Writes of one's own over a store that fails and freezes.
