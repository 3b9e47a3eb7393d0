//! Processor time of Redis and of this process.

use std::fs;
use std::time::Duration;

use campanile::BoxError;
use campanile_test::RedisServer;
use rustix::time::{ClockId, clock_gettime};

use super::{Environment, info};

/// Reads the processor time that Redis has used.
pub(super) fn of_redis(env: &Environment) -> Result<Duration, BoxError> {
    of_server(&env.redis)
}

/// Reads the processor time that this server has used.
pub(crate) fn of_server(server: &RedisServer) -> Result<Duration, BoxError> {
    let part = |name| info(server, "cpu", name);
    Ok(Duration::from_secs_f64(part("used_cpu_user")? + part("used_cpu_sys")?))
}

/// Reads the processor time that this process has used.
pub(super) fn of_process() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Reads the processor time of this process's threads with this name.
pub(super) fn of_threads(name: &str) -> Result<Duration, BoxError> {
    let mut all = Duration::ZERO;
    for thread in fs::read_dir("/proc/self/task")? {
        let path = thread?.path();
        // The thread may have exited in the meantime.
        let Ok(comm) = fs::read_to_string(path.join("comm")) else { continue };
        // The kernel keeps 15 bytes of a thread's name.
        if name.starts_with(comm.trim_end()) {
            all += parse_stat(&fs::read_to_string(path.join("stat"))?)?;
        }
    }
    Ok(all)
}

/// Reads the processor time of a process with its threads.
pub(crate) fn of_pid(pid: u32) -> Result<Duration, BoxError> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
}

/// Parses the user and system time of a line of `/proc/*/stat`, in ticks of 10 ms.
fn parse_stat(stat: &str) -> Result<Duration, BoxError> {
    let (_, after_name) = stat.rsplit_once(')').ok_or("no stat")?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok()).ok_or("no stat");
    Ok(Duration::from_millis((ticks()? + ticks()?) * 10))
}
