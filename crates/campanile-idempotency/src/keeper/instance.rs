//! The name of this process in the entries that it holds.

use std::process;
use std::sync::{Arc, OnceLock};

/// The name of the host and the process id.
pub(super) fn default_name() -> Arc<str> {
    static NAME: OnceLock<Arc<str>> = OnceLock::new();
    NAME.get_or_init(|| format!("{}/{}", host_name(), process::id()).into()).clone()
}

#[cfg(target_os = "linux")]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Shells and containers set one of these variables.
#[cfg(not(target_os = "linux"))]
fn host_name() -> String {
    let name = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    name("HOSTNAME").or_else(|| name("COMPUTERNAME")).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn name_begins_with_that_of_the_host() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(*default_name(), format!("{}/{}", host.trim_end(), process::id()));
    }
}
