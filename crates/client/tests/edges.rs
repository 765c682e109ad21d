//! Where the client meets the operating system: threads, deadlines in real time, forks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tenure_client::{Client, HardStop, PermitError};

/// The shortest that a store allows.
const TTL: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(20);

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

#[test]
fn the_application_needs_no_timers_and_may_change_its_runtime() {
    let client = Client::embedded();
    let session = block_on(client.session().ttl(TTL).open()).expect("opened");
    let lease = block_on(async { session.acquire("r").await }).expect("granted");
    // No runtime of the application's exists now.
    let start = Instant::now();
    while start.elapsed() < TTL * 3 {
        std::thread::sleep(TTL / 10);
    }
    let other = block_on(client.session().ttl(TTL).open()).expect("opened");
    let refused = block_on(async { other.acquire("r").await }).expect_err("kept all the time");
    assert!(refused.is_held(), "{refused}");
    block_on(lease.release()).expect("released");
}

#[test]
fn work_that_overstays_is_stopped_by_the_watchdog() {
    static STOPPED: AtomicU64 = AtomicU64::new(0);
    let client = Client::embedded();
    let request = client
        .session()
        .ttl(TTL)
        // Nobody reports progress, so nothing is renewed.
        .progress_within(Duration::from_millis(1))
        .hard_stop(HardStop::Call(|token| STOPPED.store(token, Ordering::SeqCst)));
    let session = block_on(request.open()).expect("opened");
    let lease = block_on(async { session.acquire("r").await }).expect("granted");
    // The application's hook hangs for ever. That must not matter.
    let (_never, hang) = mpsc::channel::<()>();
    lease.on_change(move |_| _ = hang.recv());
    let permit = lease.permit().expect("held");
    let start = Instant::now();
    while STOPPED.load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed() < SOON, "nobody stopped the work");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(STOPPED.load(Ordering::SeqCst), permit.token().get());
    assert_eq!(permit.time_left(), Duration::ZERO, "not before the deadline");
}

/// The other way to stop: the process is aborted, whatever its own code is doing. Tried on this very program,
/// started again.
#[cfg(unix)]
#[test]
fn work_that_overstays_aborts_the_process_if_that_was_asked_for() {
    use std::os::unix::process::ExitStatusExt;
    const OVERSTAYS: &str = "TENURE_TEST_OVERSTAYS";
    if std::env::var_os(OVERSTAYS).is_none() {
        let program = std::env::current_exe().expect("a running program has a path");
        let test = "work_that_overstays_aborts_the_process_if_that_was_asked_for";
        let mut again = std::process::Command::new(program);
        again.args([test, "--exact", "--nocapture"]).env(OVERSTAYS, "1");
        let ended = again.output().expect("the test program can be started again");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("aborting, because the lease may be another's"), "{said}");
        return;
    }
    let client = Client::embedded();
    let request =
        client.session().ttl(TTL).progress_within(Duration::from_millis(1)).hard_stop(HardStop::Abort);
    let session = block_on(request.open()).expect("opened");
    let lease = block_on(async { session.acquire("r").await }).expect("granted");
    let _permit = lease.permit().expect("held");
    std::thread::sleep(SOON);
}

#[cfg(target_os = "linux")]
#[test]
#[allow(unsafe_code)]
fn a_fork_holds_nothing() {
    let client = Client::embedded();
    let session = block_on(client.session().open()).expect("opened");
    let lease = block_on(async { session.acquire("r").await }).expect("granted");
    // SAFETY: the child takes no lock, allocates nothing and ends without running destructors: it asks for a
    // permit, which must be refused before anything else happens, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = matches!(lease.permit(), Err(PermitError::Forked { .. }));
        // SAFETY: it does not return.
        unsafe { libc::_exit(i32::from(!forked)) }
    }
    let mut status = 0;
    // SAFETY: `status` is ours and alive for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child was given a permit");
    drop(lease.permit().expect("the parent holds it"));
}
