//! The name of this process in the entries that it holds.

use std::process;
use std::sync::{Arc, OnceLock};

/// The name of the host and the process id.
pub(super) fn default_name() -> Arc<str> {
    static NAME: OnceLock<Arc<str>> = OnceLock::new();
    NAME.get_or_init(|| {
        let host = gethostname::gethostname();
        format!("{}/{}", host.display(), process::id()).into()
    })
    .clone()
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
