//! What must be removed: processes that the demo started and folders that it created. Each is registered here
//! while it exists, so that an interrupted demo cleans up like a finished one.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

struct Left {
    processes: Vec<u32>,
    folders: Vec<PathBuf>,
}

static LEFT: Mutex<Left> = Mutex::new(Left { processes: Vec::new(), folders: Vec::new() });

fn with(change: impl FnOnce(&mut Left)) {
    change(&mut LEFT.lock().unwrap_or_else(PoisonError::into_inner));
}

/// A process of ours runs.
pub fn started(process: u32) {
    with(|left| left.processes.push(process));
}

/// It was waited for: its number may be somebody else's from now on.
pub fn ended(process: u32) {
    with(|left| left.processes.retain(|other| *other != process));
}

/// A folder of ours exists.
pub fn made(folder: &Path) {
    with(|left| left.folders.push(folder.to_path_buf()));
}

/// It has been removed.
pub fn removed(folder: &Path) {
    with(|left| left.folders.retain(|other| other != folder));
}

/// Tidies up when the user has seen enough.
pub fn on_interrupt() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
                with(|left| {
                    for process in left.processes.drain(..) {
                        if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
                            // It may be gone already.
                            let _ = kill_process(process, Signal::KILL);
                        }
                    }
                    for folder in left.folders.drain(..) {
                        let _ = std::fs::remove_dir_all(folder);
                    }
                });
                std::process::exit(130);
            }
        });
    });
}
