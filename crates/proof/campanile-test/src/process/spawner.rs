use crate::program;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;

type Job = (Command, mpsc::SyncSender<io::Result<Child>>);

/// Starts a child process on a thread that lives as long as this process.
///
/// The kernel sends the parent-death signal when the *thread* that started the child exits, and a
/// test's thread exits with the test.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, reply) in jobs {
                // The caller waits for the reply.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, result) = mpsc::sync_channel(1);
    SPAWNER.send((command, reply)).expect("the spawning thread lives as long as the process");
    result.recv().expect("the spawning thread answers every job")
}

/// Copies the command, modified so that its process is killed when this process dies for any
/// reason, if `setpriv` can request that from Linux. Setting the signal directly would require
/// unsafe code between fork and exec.
pub(super) fn with_death_signal(command: &Command) -> Command {
    static HAS_SETPRIV: LazyLock<bool> = LazyLock::new(|| {
        cfg!(target_os = "linux")
            && Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
    });
    let program = command.get_program();
    // A program that cannot be found is spawned unmodified, so that the error names the program and
    // not `setpriv`.
    let found =
        program.to_str().is_some_and(|name| name.contains('/') || program::find(name).is_some());
    let mut modified = if found && *HAS_SETPRIV {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--pdeathsig", "KILL", "--"]).arg(program);
        setpriv
    } else {
        Command::new(program)
    };
    modified.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => modified.env(name, value),
            None => modified.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        modified.current_dir(folder);
    }
    modified
}
