//! Runs the writer: on its own thread, as a task where threads are not allowed, or in place on the calling
//! thread (`crate::low_latency`).

use super::record::LogId;
use super::writer::{Job, Writer};
use crate::config::Execution;
use crate::disk::Disk;
use crate::low_latency::{LowLatency, WriteMode, yield_to_ready_tasks};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

/// How many jobs are taken at once. Their bytes are limited by the frame, not here.
const JOBS_MAX: usize = 4096;

/// The way to the writer. What is queued is bounded by what the engine keeps in flight; the writer
/// ends with [`Job::Close`], or when all clones are gone.
#[derive(Clone)]
pub(crate) struct Queue {
    jobs: UnboundedSender<QueuedJob>,
    committed: Arc<Mutex<Option<LogId>>>,
    shared: Arc<Shared>,
    low_latency: LowLatency,
}

/// The writer, which others may use while its thread or task has nothing to do.
struct Shared {
    /// None once it is closed.
    writer: Mutex<Option<Writer>>,
    /// How many jobs the thread or task has still to carry out.
    queued: AtomicUsize,
    /// Jobs to be carried out in place in a moment, before anything that is queued later.
    deferred: Mutex<Vec<Job>>,
    disk: Arc<dyn Disk>,
}

/// Exclusive use of the idle writer: jobs that are queued meanwhile come later.
pub(crate) struct Claim<'a> {
    writer: MutexGuard<'a, Option<Writer>>,
    committed: &'a Mutex<Option<LogId>>,
}

/// A job, and what was committed when it was queued if that is new: it is written before the job.
type QueuedJob = (Option<LogId>, Job);

impl Queue {
    /// Starts the writer. `lock` guards the data directory and is kept until the last write is done;
    /// then the receiver is closed.
    pub fn start(
        writer: Writer,
        disk: Arc<dyn Disk>,
        execution: Execution,
        low_latency: LowLatency,
        lock: Box<dyn Send + Sync>,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (sender, jobs) = mpsc::unbounded_channel();
        let (ended, end) = oneshot::channel();
        let (queued, deferred) = (AtomicUsize::new(0), Mutex::default());
        let shared = Arc::new(Shared { writer: Mutex::new(Some(writer)), queued, deferred, disk });
        let used = shared.clone();
        match execution {
            Execution::Threads => {
                let thread = std::thread::Builder::new().name("tenure-wal".into());
                thread.spawn(move || {
                    write_on_thread(&used, jobs);
                    drop(lock);
                    drop(ended);
                })?;
            }
            Execution::Tasks => {
                tokio::spawn(async move {
                    write_as_task(&used, jobs).await;
                    drop(lock);
                    drop(ended);
                });
            }
        }
        Ok((Self { jobs: sender, committed: Arc::default(), shared, low_latency }, end))
    }

    /// Queues a job. An error means that the writer has ended.
    pub fn push(&self, job: Job) -> io::Result<()> {
        // Sent under the lock, so that no job overtakes what it goes out with, or what was deferred before
        // it.
        let mut committed = self.committed.lock();
        for deferred in self.take_deferred() {
            self.send(committed.take(), deferred)?;
        }
        self.send(committed.take(), job)
    }

    /// Carries a job out in place as soon as all tasks that are ready now have run, if the writer is idle and
    /// its disk fast; queues it otherwise.
    pub fn push_deferred(&self, job: Job) -> io::Result<()> {
        if self.claim().is_none() {
            return self.push(job);
        }
        self.shared.deferred.lock().push(job);
        let queue = self.clone();
        tokio::spawn(async move {
            yield_to_ready_tasks().await;
            queue.carry_out_deferred();
        });
        Ok(())
    }

    fn carry_out_deferred(&self) {
        match self.claim_before_deferred() {
            // Taken only with the writer claimed: what is queued from now on waits for it.
            Some(claim) => {
                let jobs = self.take_deferred();
                if !jobs.is_empty() {
                    self.low_latency.wrote(WriteMode::InPlaceAfterSending);
                }
                claim.carry_out(jobs);
            }
            None => {
                let mut committed = self.committed.lock();
                for job in self.take_deferred() {
                    // Refused only by a log that was closed, and nobody waits for that one any more.
                    let _ = self.send(committed.take(), job);
                }
            }
        }
    }

    fn send(&self, committed: Option<LogId>, job: Job) -> io::Result<()> {
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        self.jobs.send((committed, job)).map_err(|_| io::Error::other("the log is closed"))
    }

    fn take_deferred(&self) -> Vec<Job> {
        std::mem::take(&mut *self.shared.deferred.lock())
    }

    /// The writer, if it is idle and its disk fast.
    pub fn claim(&self) -> Option<Claim<'_>> {
        self.claim_before_deferred().filter(|_| self.shared.deferred.lock().is_empty())
    }

    fn claim_before_deferred(&self) -> Option<Claim<'_>> {
        let writer = self.shared.writer.try_lock()?;
        let idle = self.shared.queued.load(Ordering::Acquire) == 0;
        let fast = writer.as_ref().is_some_and(Writer::is_fast);
        // The delay of a simulated disk has to be slept for, and only the writer's task can do that.
        let undelayed = self.shared.disk.sync_delay().is_zero();
        (idle && fast && undelayed).then_some(Claim { writer, committed: &self.committed })
    }

    /// Notes what is committed. It goes with the next job: it only saves time after a restart, and waking the
    /// writer for it would hold up the very answers that it is about.
    pub fn note_committed(&self, id: LogId) {
        *self.committed.lock() = Some(id);
    }
}

impl Claim<'_> {
    /// Carries out jobs here and now; their callbacks have been called when this returns.
    pub fn carry_out(mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let committed = self.committed.lock().take().map(Job::Committed);
        let mut batch: VecDeque<Job> = committed.into_iter().chain(jobs).collect();
        let writer = self.writer.as_mut().expect("nobody claims a closed writer");
        writer.carry_out(&mut batch);
    }
}

fn write_on_thread(shared: &Shared, mut jobs: UnboundedReceiver<QueuedJob>) {
    let mut batch = VecDeque::new();
    while let Some(queued_job) = jobs.blocking_recv() {
        // Whoever has claimed the writer is waited for; what queues up meanwhile shares a sync.
        let mut writer = shared.writer.lock();
        unpack(queued_job, &mut batch);
        let queued_jobs = 1 + fill(&mut batch, &mut jobs);
        let open = writer.as_mut().expect("only its thread closes the writer").carry_out(&mut batch);
        if !open {
            break;
        }
        shared.queued.fetch_sub(queued_jobs, Ordering::AcqRel);
    }
    // Nobody writes any more, not even by a claim: the directory may be another's in a moment.
    *shared.writer.lock() = None;
}

async fn write_as_task(shared: &Shared, mut jobs: UnboundedReceiver<QueuedJob>) {
    let mut batch = VecDeque::new();
    while let Some(queued_job) = jobs.recv().await {
        unpack(queued_job, &mut batch);
        let delay = shared.disk.sync_delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut writer = shared.writer.lock();
        let queued_jobs = 1 + fill(&mut batch, &mut jobs);
        let writer = writer.as_mut().expect("only its task closes the writer");
        if !delay.is_zero() {
            writer.delayed(delay);
        }
        if !writer.carry_out(&mut batch) {
            break;
        }
        shared.queued.fetch_sub(queued_jobs, Ordering::AcqRel);
    }
    *shared.writer.lock() = None;
}

/// Takes what is queued, and returns how many jobs that was.
fn fill(batch: &mut VecDeque<Job>, jobs: &mut UnboundedReceiver<QueuedJob>) -> usize {
    let mut queued_jobs = 0;
    while batch.len() < JOBS_MAX {
        let Ok(queued_job) = jobs.try_recv() else { break };
        unpack(queued_job, batch);
        queued_jobs += 1;
    }
    queued_jobs
}

fn unpack((committed, job): QueuedJob, batch: &mut VecDeque<Job>) {
    batch.extend(committed.map(Job::Committed));
    batch.push_back(job);
}

#[cfg(test)]
mod tests {
    use super::super::record::LogEntry;
    use super::super::rig::{Rig, entry};
    use super::super::writer::Done;
    use super::*;
    use crate::config::{LogOptions, Stopwatch};
    use crate::disk::SimDisk;
    use crate::low_latency::LowLatencyOptions;
    use std::sync::atomic::AtomicBool;
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    /// A log and its queue, with entries under rising numbers.
    struct Fixture {
        disk: SimDisk,
        log: super::super::SharedLog,
        meter: super::super::Meter,
        queue: Queue,
        closed: oneshot::Receiver<()>,
        next: u64,
    }

    impl Fixture {
        fn start(execution: Execution, stopwatch: Stopwatch) -> Fixture {
            let disk = SimDisk::new();
            let rig = Rig::timed(&disk, LogOptions::default(), stopwatch).unwrap();
            let (log, meter) = (rig.log.clone(), rig.meter.clone());
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let low_latency = LowLatency::new(LowLatencyOptions::default(), execution);
            let (queue, closed) =
                Queue::start(rig.writer, shared, execution, low_latency, Box::new(())).unwrap();
            Fixture { disk, log, meter, queue, closed, next: 0 }
        }

        /// The next entry, readable already.
        fn entry(&mut self) -> LogEntry {
            let entry = entry(1, self.next, b"x");
            assert!(self.log.lock().append(&entry));
            self.next += 1;
            entry
        }

        /// Appends through the queue, and waits until it is durable.
        async fn append(&mut self) -> LogId {
            let entry = self.entry();
            let id = entry.id;
            let (sender, done) = oneshot::channel();
            let done_with = Done::new(|result| drop(sender.send(result)));
            self.queue.push(Job::Append(vec![entry], done_with)).unwrap();
            done.await.unwrap().unwrap();
            id
        }

        /// Waits until the thread has let go of the writer. It is a moment behind what it acknowledges.
        fn claim(&self) -> Claim<'_> {
            loop {
                match self.queue.claim() {
                    Some(claim) => return claim,
                    None => thread::yield_now(),
                }
            }
        }

        /// Closes it, and says what a restart finds.
        async fn reopen(self) -> Rig {
            self.queue.push(Job::Close(Done::new(|_| ()))).unwrap();
            assert!(self.closed.await.is_err(), "closed by being dropped");
            assert!(self.queue.claim().is_none(), "a closed writer cannot be claimed");
            Rig::open(&self.disk, LogOptions::default()).unwrap()
        }
    }

    /// Nobody is woken for a commit, and yet it is not lost: a restart finds it.
    #[tokio::test]
    async fn what_is_committed_goes_with_the_next_job() {
        let mut fixture = Fixture::start(Execution::Tasks, Stopwatch::default());
        let first = fixture.append().await;
        let before = fixture.meter.status().records;
        fixture.queue.note_committed(first);
        fixture.append().await;
        assert_eq!(fixture.meter.status().records, before + 2);
        assert_eq!(fixture.reopen().await.log.lock().committed, Some(first));
    }

    #[tokio::test]
    async fn an_idle_writer_on_a_fast_disk_is_used_in_place() {
        let mut fixture = Fixture::start(Execution::Threads, Stopwatch::default());
        assert!(fixture.queue.claim().is_none(), "nothing is known of the disk yet");
        for _ in 0..100 {
            fixture.append().await;
        }
        let entry = fixture.entry();
        let committed = LogId { term: 1, index: 99 };
        fixture.queue.note_committed(committed);
        let (sender, receiver) = std::sync::mpsc::channel::<(ThreadId, bool)>();
        let done = Done::new(move |result| sender.send((thread::current().id(), result.is_ok())).unwrap());
        fixture.claim().carry_out(vec![Job::Append(vec![entry], done)]);
        assert_eq!(receiver.try_recv(), Ok((thread::current().id(), true)), "before it returned, and here");
        fixture.append().await;
        let rig = fixture.reopen().await;
        assert_eq!(rig.entries().len(), 102);
        assert_eq!(rig.log.lock().committed, Some(committed));
    }

    #[tokio::test]
    async fn what_is_queued_goes_first() {
        let mut fixture = Fixture::start(Execution::Threads, Stopwatch::default());
        for _ in 0..100 {
            fixture.append().await;
        }
        for _ in 0..100 {
            let (first, second) = (fixture.entry(), fixture.entry());
            let claim = fixture.claim();
            let durable = Arc::new(AtomicBool::new(false));
            let sender = durable.clone();
            let done = Done::new(move |_| sender.store(true, Ordering::SeqCst));
            fixture.queue.push(Job::Append(vec![first], done)).unwrap();
            assert!(fixture.queue.claim().is_none(), "it is claimed already");
            drop(claim);
            let claim = fixture.claim();
            assert!(durable.load(Ordering::SeqCst), "a claim overtook what was queued");
            claim.carry_out(vec![Job::Append(vec![second], Done::new(|_| ()))]);
        }
        assert_eq!(fixture.reopen().await.entries().len(), 300);
    }

    /// What was deferred is written here, behind the tasks that were ready, and nothing that comes later
    /// overtakes it.
    #[tokio::test]
    async fn what_is_deferred_is_carried_out_in_place_and_in_order() {
        let mut fixture = Fixture::start(Execution::Threads, Stopwatch::default());
        for _ in 0..100 {
            fixture.append().await;
        }
        let here = thread::current().id();
        for queued_meanwhile in [false, true] {
            drop(fixture.claim());
            let (sender, mut receiver) = mpsc::unbounded_channel::<(&str, ThreadId)>();
            let done = |name| {
                let sender = sender.clone();
                Done::new(move |_| sender.send((name, thread::current().id())).unwrap())
            };
            let ready = sender.clone();
            let (first, second) = (fixture.entry(), fixture.entry());
            fixture.queue.push_deferred(Job::Append(vec![first], done("deferred"))).unwrap();
            tokio::spawn(async move { ready.send(("ready", thread::current().id())).unwrap() });
            assert!(fixture.queue.claim().is_none(), "a claim would overtake what is deferred");
            if queued_meanwhile {
                fixture.queue.push(Job::Append(vec![second], done("queued"))).unwrap();
                let mut durable = vec![];
                while durable.len() < 2 {
                    let (name, thread) = receiver.recv().await.unwrap();
                    assert!(name == "ready" || thread != here, "both by the writer's own thread");
                    durable.extend((name != "ready").then_some(name));
                }
            } else {
                assert_eq!(receiver.recv().await, Some(("ready", here)));
                assert_eq!(receiver.recv().await, Some(("deferred", here)));
                fixture.queue.push(Job::Append(vec![second], done("queued"))).unwrap();
                assert!(
                    receiver.recv().await.is_some_and(|(name, thread)| name == "queued" && thread != here)
                );
            }
        }
        assert_eq!(fixture.reopen().await.entries().len(), 104);
    }

    /// A shutdown right behind an entry that was deferred: it is in the log all the same.
    #[tokio::test]
    async fn what_is_deferred_is_written_before_the_log_is_closed() {
        let mut fixture = Fixture::start(Execution::Threads, Stopwatch::default());
        for _ in 0..100 {
            fixture.append().await;
        }
        drop(fixture.claim());
        let entry = fixture.entry();
        fixture.queue.push_deferred(Job::Append(vec![entry], Done::new(|_| ()))).unwrap();
        assert!(fixture.queue.claim().is_none(), "it is deferred, not done");
        assert_eq!(fixture.reopen().await.entries().len(), 101);
    }

    /// In simulation the writer is a task. Others use it under the same conditions, and not while its disk
    /// has a delay.
    #[tokio::test]
    async fn a_writer_that_is_a_task_is_used_in_place_too() {
        let mut fixture = Fixture::start(Execution::Tasks, Stopwatch::default());
        assert!(fixture.queue.claim().is_none(), "nothing is known of the disk yet");
        for _ in 0..100 {
            fixture.append().await;
        }
        let (first, second) = (fixture.entry(), fixture.entry());
        let (sender, durable) = oneshot::channel();
        let done = Done::new(|result| drop(sender.send(result)));
        fixture.queue.push(Job::Append(vec![first], done)).unwrap();
        assert!(fixture.queue.claim().is_none(), "a claim would overtake what is queued");
        durable.await.unwrap().unwrap();
        let claim = fixture.queue.claim().expect("it is idle and fast");
        claim.carry_out(vec![Job::Append(vec![second], Done::new(|_| ()))]);

        fixture.disk.slow_down(Duration::from_millis(3));
        assert!(fixture.queue.claim().is_none(), "only the task can sleep for the delay");
        fixture.append().await;
        fixture.disk.slow_down(Duration::ZERO);
        assert!(fixture.queue.claim().is_none(), "one slow sync outweighs many fast ones");
        for _ in 0..100 {
            fixture.append().await;
        }
        assert!(fixture.queue.claim().is_some());
        assert_eq!(fixture.reopen().await.entries().len(), 203);
    }

    /// A thread that others share must not be kept waiting by a disk that is known to be slow.
    #[tokio::test]
    async fn a_slow_disk_is_waited_for_by_its_own_thread_alone() {
        let ticks = AtomicUsize::new(0);
        let slow = move || Duration::from_millis(3) * ticks.fetch_add(1, Ordering::SeqCst) as u32;
        let mut fixture = Fixture::start(Execution::Threads, Stopwatch::from_source(slow));
        for _ in 0..100 {
            fixture.append().await;
            for _ in 0..100 {
                assert!(fixture.queue.claim().is_none());
                thread::yield_now();
            }
        }
        let (sender, receiver) = oneshot::channel();
        let entry = fixture.entry();
        let done = Done::new(move |_| sender.send(thread::current().id()).unwrap());
        fixture.queue.push_deferred(Job::Append(vec![entry], done)).unwrap();
        assert_ne!(receiver.await.unwrap(), thread::current().id());
        let queue = fixture.queue.clone();
        fixture.reopen().await;
        assert!(queue.push(Job::Purge(LogId { term: 1, index: 1 })).is_err());
    }
}
