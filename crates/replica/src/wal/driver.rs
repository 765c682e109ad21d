//! Running the writer: on a thread of its own, or as a task where threads are not allowed.

use super::record::LogId;
use super::writer::{Job, Writer};
use crate::config::Execution;
use crate::disk::Disk;
use crate::spin_wait::after_the_others;
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
    /// The writer, where it has a thread. Where it is a task nobody can wait for it.
    shared: Option<Arc<Shared>>,
}

/// A writer that can be used by others while its thread has nothing to do.
struct Shared {
    /// None once it is closed.
    writer: Mutex<Option<Writer>>,
    /// What the thread has still to carry out.
    queued: AtomicUsize,
    /// What is to be carried out in place in a moment; it goes before anything that is queued later.
    put_off: Mutex<Vec<Job>>,
}

/// The writer, idle and in the hands of one caller: whatever is queued meanwhile comes later.
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
        lock: Box<dyn Send + Sync>,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (sender, jobs) = mpsc::unbounded_channel();
        let (ended, end) = oneshot::channel();
        let mut shared = None;
        match execution {
            Execution::Threads => {
                let writer = Mutex::new(Some(writer));
                let (queued, put_off) = (AtomicUsize::new(0), Mutex::default());
                let writer = Arc::new(Shared { writer, queued, put_off });
                shared = Some(writer.clone());
                let thread = std::thread::Builder::new().name("tenure-wal".into());
                thread.spawn(move || {
                    write_on_thread(&writer, jobs);
                    drop(lock);
                    drop(ended);
                })?;
            }
            Execution::Tasks => {
                tokio::spawn(async move {
                    write_as_task(writer, jobs, disk).await;
                    drop(lock);
                    drop(ended);
                });
            }
        }
        Ok((Self { jobs: sender, committed: Arc::default(), shared }, end))
    }

    /// Queues a job. An error means that the writer has ended.
    pub fn push(&self, job: Job) -> io::Result<()> {
        // Sent under the lock, so that no job overtakes what it goes out with, or what was put off before it.
        let mut committed = self.committed.lock();
        for put_off in self.take_put_off() {
            self.send(committed.take(), put_off)?;
        }
        self.send(committed.take(), job)
    }

    /// Has a job carried out in place as soon as all tasks that are ready now have run, if the writer has nothing to do and its
    /// disk is quick; queues it otherwise.
    pub fn push_soon(&self, job: Job) -> io::Result<()> {
        let Some(shared) = self.shared.as_ref().filter(|_| self.claim().is_some()) else {
            return self.push(job);
        };
        shared.put_off.lock().push(job);
        let queue = self.clone();
        tokio::spawn(async move {
            after_the_others().await;
            queue.carry_out_put_off();
        });
        Ok(())
    }

    fn carry_out_put_off(&self) {
        match self.claim_before_put_off() {
            // Taken only with the writer in hand: what is queued from now on waits for it.
            Some(claim) => claim.carry_out(self.take_put_off()),
            None => {
                let mut committed = self.committed.lock();
                for job in self.take_put_off() {
                    // Refused only by a log that was closed, and nobody waits for that one any more.
                    let _ = self.send(committed.take(), job);
                }
            }
        }
    }

    fn send(&self, committed: Option<LogId>, job: Job) -> io::Result<()> {
        if let Some(shared) = &self.shared {
            shared.queued.fetch_add(1, Ordering::AcqRel);
        }
        self.jobs.send((committed, job)).map_err(|_| io::Error::other("the log is closed"))
    }

    fn take_put_off(&self) -> Vec<Job> {
        self.shared.as_ref().map(|shared| std::mem::take(&mut *shared.put_off.lock())).unwrap_or_default()
    }

    /// The writer, if it has nothing to do and its disk is quick.
    pub fn claim(&self) -> Option<Claim<'_>> {
        let nothing_put_off = || self.shared.as_ref().is_some_and(|shared| shared.put_off.lock().is_empty());
        self.claim_before_put_off().filter(|_| nothing_put_off())
    }

    fn claim_before_put_off(&self) -> Option<Claim<'_>> {
        let shared = self.shared.as_ref()?;
        let writer = shared.writer.try_lock()?;
        let idle = shared.queued.load(Ordering::Acquire) == 0;
        let quick = writer.as_ref().is_some_and(Writer::is_quick);
        (idle && quick).then_some(Claim { writer, committed: &self.committed })
    }

    /// Notes what is committed. It goes with the next job: it only saves time after a restart, and waking the writer
    /// for it would hold up the very answers that it is about.
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

async fn write_as_task(mut writer: Writer, mut jobs: UnboundedReceiver<QueuedJob>, disk: Arc<dyn Disk>) {
    let mut batch = VecDeque::new();
    while let Some(queued_job) = jobs.recv().await {
        unpack(queued_job, &mut batch);
        let delay = disk.sync_delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        fill(&mut batch, &mut jobs);
        if !writer.carry_out(&mut batch) {
            break;
        }
    }
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
            let (queue, closed) = Queue::start(rig.writer, shared, execution, Box::new(())).unwrap();
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
            assert!(self.queue.claim().is_none(), "what is closed is nobody's");
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
    async fn an_idle_writer_on_a_quick_disk_is_used_in_place() {
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

    /// What was put off is written here, behind the tasks that were ready, and nothing that comes later overtakes it.
    #[tokio::test]
    async fn what_is_put_off_is_carried_out_in_place_and_in_order() {
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
            fixture.queue.push_soon(Job::Append(vec![first], done("put off"))).unwrap();
            tokio::spawn(async move { ready.send(("ready", thread::current().id())).unwrap() });
            assert!(fixture.queue.claim().is_none(), "a claim would overtake what is put off");
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
                assert_eq!(receiver.recv().await, Some(("put off", here)));
                fixture.queue.push(Job::Append(vec![second], done("queued"))).unwrap();
                assert!(
                    receiver.recv().await.is_some_and(|(name, thread)| name == "queued" && thread != here)
                );
            }
        }
        assert_eq!(fixture.reopen().await.entries().len(), 104);
    }

    /// A shutdown right behind an entry that was put off: it is in the log all the same.
    #[tokio::test]
    async fn what_is_put_off_is_written_before_the_log_is_closed() {
        let mut fixture = Fixture::start(Execution::Threads, Stopwatch::default());
        for _ in 0..100 {
            fixture.append().await;
        }
        drop(fixture.claim());
        let entry = fixture.entry();
        fixture.queue.push_soon(Job::Append(vec![entry], Done::new(|_| ()))).unwrap();
        assert!(fixture.queue.claim().is_none(), "it is put off, not done");
        assert_eq!(fixture.reopen().await.entries().len(), 101);
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
        fixture.queue.push_soon(Job::Append(vec![entry], done)).unwrap();
        assert_ne!(receiver.await.unwrap(), thread::current().id());
        let queue = fixture.queue.clone();
        fixture.reopen().await;
        assert!(queue.push(Job::Purge(LogId { term: 1, index: 1 })).is_err());
    }
}
