//! How this process is named to others.

use std::sync::OnceLock;

/// Returns the name of this machine, or that of the container.
pub fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        match host.trim() {
            "" => std::env::var("HOSTNAME").unwrap_or_else(|_| "this host".to_owned()),
            host => host.to_owned(),
        }
    })
}
