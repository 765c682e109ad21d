//! One simulated process: its own runtime, whose time the simulation advances. It can be stopped and resumed,
//! as by SIGSTOP and SIGCONT, and ended at any moment, as by SIGKILL.

use std::cell::RefCell;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{Moment, WallTime};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::net::Tick;

/// What clients's calendars show when a simulation begins.
const CALENDAR_MILLIS: u64 = 1_800_000_000_000;

/// Time as one process sees it: the simulation's, at a rate of its own.
#[derive(Clone)]
pub struct ProcessClock {
    origin: Instant,
    started: Tick,
    ppm: i64,
    /// For how long its machine was suspended so far: one of the two clocks stood still.
    suspended: Arc<AtomicU64>,
    /// When the process was ended: what is dropped with it is dropped then.
    ended: Arc<AtomicU64>,
}

impl ProcessClock {
    /// Microseconds since the simulation began: what nobody inside may know. Meaningful only within the
    /// process.
    pub fn truth(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        if ended != u64::MAX {
            return ended;
        }
        let here = Instant::now().saturating_duration_since(self.origin);
        self.started * 1_000 + u64::try_from(here.as_micros()).unwrap_or(0)
    }

    /// How long something takes in truth that takes so long by this clock.
    pub fn in_truth(&self, length: Duration) -> u64 {
        let length = length.as_micros() as i64;
        (length - length * self.ppm / (1_000_000 + self.ppm)) as u64
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> Moment {
        let shown = |truth: i64| Duration::from_micros((truth + truth * self.ppm / 1_000_000) as u64);
        let truth = self.truth();
        let awake = truth - self.suspended.load(Ordering::Relaxed);
        Moment::from_readings(shown(truth as i64), shown(awake as i64))
    }

    fn wall(&self) -> WallTime {
        WallTime::from_unix_millis(CALENDAR_MILLIS + self.truth() / 1_000)
    }
}

/// Whether a seed decides what tokio leaves to chance too: the branch that `select!` tries first, and the
/// order in which those who wait for one `watch` channel are woken. Without it a run cannot be repeated.
pub const SEEDED: bool = cfg!(tokio_unstable);

#[cfg(tokio_unstable)]
fn seeded(builder: &mut Builder, seed: u64) -> &mut Builder {
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_be_bytes()))
}

/// Compiles, so that the whole workspace can be built and linted with one set of flags.
#[cfg(not(tokio_unstable))]
fn seeded(builder: &mut Builder, _seed: u64) -> &mut Builder {
    builder
}

/// A running process.
pub struct Process {
    runtime: Runtime,
    clock: ProcessClock,
    /// How it stands still, and since when.
    still: Option<(Still, Tick)>,
}

/// How a process stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Still {
    /// It alone was stopped, and all clocks go on.
    Stopped,
    /// Its machine is suspended.
    Suspended,
}

impl Process {
    /// Starts a process at `now`, with a clock that runs `ppm` millionths too fast.
    pub fn start<F>(now: Tick, ppm: i64, seed: u64, main: impl FnOnce(ProcessClock) -> F) -> Process
    where
        F: Future<Output = ()> + Send + 'static,
    {
        listen_to_panics();
        let runtime = seeded(Builder::new_current_thread().enable_time().start_paused(true), seed)
            .build()
            .expect("a runtime without threads and sockets can always be made");
        let origin = runtime.block_on(async { Instant::now() });
        let (suspended, ended) = (Arc::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let clock = ProcessClock { origin, started: now, ppm, suspended, ended };
        let main = {
            let _inside = runtime.enter();
            main(clock.clone())
        };
        drop(runtime.spawn(main));
        Process { runtime, clock, still: None }
    }

    /// Gives it one more thing to do.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    /// It stands still from now on.
    pub fn stop(&mut self, how: Still, now: Tick) {
        self.still = self.still.or(Some((how, now)));
    }

    /// It goes on at `now`, if it stands still.
    pub fn wake(&mut self, now: Tick) {
        if let Some((Still::Suspended, since)) = self.still.take() {
            self.clock.suspended.fetch_add((now - since) * 1_000, Ordering::Relaxed);
        }
    }

    /// Ends it, with everything that it was doing.
    pub fn end(self, now: Tick) {
        self.clock.ended.store(now * 1_000, Ordering::Relaxed);
    }

    /// Lets it do everything that it does from `now` until `until`.
    pub fn run(&mut self, now: Tick, until: Tick) {
        if self.still.is_some() {
            return;
        }
        let moment = |tick: Tick| self.clock.origin + Duration::from_millis(tick - self.clock.started);
        let (now, until) = (moment(now), moment(until));
        self.runtime.block_on(async {
            let missed = now.saturating_duration_since(Instant::now());
            if !missed.is_zero() {
                // Its clock went on while it stood still.
                tokio::time::advance(missed).await;
            }
            tokio::time::sleep_until(until).await;
        });
    }
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// What has panicked on this thread since it was last asked. A panic in a task does not end the simulation by
/// itself, and must not be overlooked.
pub fn take_panics() -> Vec<String> {
    PANICS.with_borrow_mut(std::mem::take)
}

fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            // The simulator tells it with the seed; tests of other things still see it.
            if std::thread::current().name() != Some(SIMULATION_THREAD) {
                before(panic);
            }
        }));
    });
}

/// Threads of this name keep their panics to themselves.
pub const SIMULATION_THREAD: &str = "simulation";
