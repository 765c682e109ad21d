//! A tree in a pid namespace of its own: when its first process dies the kernel kills all others, and that
//! process's death is not to be seen before theirs.
//!
//! It needs the right to make one (`CAP_SYS_ADMIN`); a user namespace would give that to everybody, and take
//! away files, groups and set-user-id programs that the command may count on, so none is made. The namespace
//! has its own `/proc`, so that the numbers in it are those that its processes see; for that it has its own
//! mounts, which follow those outside.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

/// Starts a process as the first of a new namespace.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    let (sender, started) = mpsc::channel();
    // On a thread of its own, and a thread that stays: only its children are born elsewhere, the rest of this
    // process can still start threads, and the child is to die with its parent, which to the kernel is this
    // thread.
    let thread = std::thread::Builder::new().name("tenure-namespace".to_owned()).spawn(move || {
        let child = unshare(UnshareFlags::NEWPID).and_then(|()| command.spawn());
        // With it go our copies of the files that the child was given.
        drop(command);
        let spawned = child.is_ok();
        let _ = sender.send(child);
        if spawned {
            loop {
                std::thread::park();
            }
        }
    });
    thread?;
    started.recv().map_err(io::Error::other)?
}

/// What the first process of a namespace does to the world that it sees.
pub fn settle() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    // Mounts made outside still arrive, and none made here leaves.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// Whether all of that is allowed.
pub fn try_out() -> io::Result<()> {
    super::try_in_process("namespace", Path::new("-"))
}

/// Tries it, in a process that was started to try it.
pub fn try_here() -> io::Result<()> {
    let mut command = crate::run::own_program(crate::run::TRY);
    command.arg("settle").arg("-");
    let status = spawn(command)?.wait()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("it could not be settled in")) }
}

/// The wrapper is deprecated because with other flags it can pull a file table away under a thread. With
/// these it moves nothing that memory safety hangs on.
#[allow(deprecated)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    Ok(rustix::thread::unshare(flags)?)
}
