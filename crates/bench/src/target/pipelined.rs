//! One TCP connection whose responses come in the order of the requests. Requests that are ready together are
//! sent in one write; each caller gets its response when its turn comes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::Result;
use super::connections::Breaks;
use crate::error::BenchError;

/// How what is read is cut into answers.
pub trait Shape: Send + 'static {
    /// One answer.
    type Reply: Send + 'static;

    /// Takes the next whole message off the front; `Ok(None)` if it has not all arrived.
    fn cut(&mut self, bytes: &[u8]) -> Result<Option<(usize, Cut<Self::Reply>)>>;
}

/// What a message is.
pub enum Cut<A> {
    /// The answer to the oldest open question.
    Reply(A),
    /// Something that nobody asked for, and that the shape has dealt with.
    Aside,
}

/// One connection.
pub struct Pipelined<S: Shape> {
    questions: mpsc::UnboundedSender<PendingRequest<S::Reply>>,
    broken: Arc<AtomicBool>,
    tasks: [JoinHandle<()>; 2],
}

struct PendingRequest<A> {
    bytes: Vec<u8>,
    /// Absent for what is not answered, or whose answer interests nobody.
    answer: Option<oneshot::Sender<A>>,
}

/// Who waits for an answer, in order; none once there will be no more answers.
type Open<A> = Arc<Mutex<Option<VecDeque<oneshot::Sender<A>>>>>;

impl<S: Shape> Pipelined<S> {
    /// Goes on with a connection that has been made. `leftover` has been read already.
    pub fn start(stream: TcpStream, leftover: Vec<u8>, shape: S) -> Result<Pipelined<S>> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        let (questions, waiting) = mpsc::unbounded_channel();
        let open: Open<S::Reply> = Arc::new(Mutex::new(Some(VecDeque::new())));
        let broken = Arc::new(AtomicBool::new(false));
        let writing = tokio::spawn(send(write, waiting, open.clone()));
        let reading = tokio::spawn(receive(read, leftover, shape, open, broken.clone()));
        Ok(Pipelined { questions, broken, tasks: [writing, reading] })
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&self, bytes: Vec<u8>) -> Result<S::Reply> {
        self.put(bytes)?.await.map_err(|_| broke())
    }

    /// Asks; the answer can be waited for later.
    pub fn put(&self, bytes: Vec<u8>) -> Result<oneshot::Receiver<S::Reply>> {
        let (answer, receiver) = oneshot::channel();
        self.questions.send(PendingRequest { bytes, answer: Some(answer) }).map_err(|_| broke())?;
        Ok(receiver)
    }

    /// Says something that is not answered.
    pub fn say(&self, bytes: Vec<u8>) -> Result<()> {
        self.questions.send(PendingRequest { bytes, answer: None }).map_err(|_| broke())
    }

    /// Stops talking; the other side sees the connection closed.
    pub fn cut_off(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.broken.store(true, Ordering::Release);
    }
}

impl<S: Shape> Breaks for Pipelined<S> {
    fn broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

impl<S: Shape> Drop for Pipelined<S> {
    fn drop(&mut self) {
        self.cut_off();
    }
}

/// What is said of a connection that has ended.
pub fn broke() -> BenchError {
    BenchError::unreachable("the connection broke")
}

async fn send<A>(
    mut write: OwnedWriteHalf,
    mut waiting: mpsc::UnboundedReceiver<PendingRequest<A>>,
    open: Open<A>,
) {
    let (mut taken, mut bytes) = (Vec::new(), Vec::new());
    while waiting.recv_many(&mut taken, 1_024).await > 0 {
        bytes.clear();
        {
            let mut open = open.lock().expect("no holder of this lock panics");
            // A connection that was closed still takes a last write, to which nobody would answer.
            let Some(open) = open.as_mut() else { break };
            for question in taken.drain(..) {
                bytes.extend_from_slice(&question.bytes);
                open.extend(question.answer);
            }
        }
        if write.write_all(&bytes).await.is_err() {
            break;
        }
    }
}

async fn receive<S: Shape>(
    mut read: OwnedReadHalf,
    leftover: Vec<u8>,
    mut shape: S,
    open: Open<S::Reply>,
    broken: Arc<AtomicBool>,
) {
    let mut bytes = leftover;
    'connection: loop {
        let mut taken = 0;
        loop {
            match shape.cut(&bytes[taken..]) {
                Ok(Some((many, cut))) => {
                    taken += many;
                    if let Cut::Reply(answer) = cut {
                        let mut open = open.lock().expect("no holder of this lock panics");
                        if let Some(asked) = open.as_mut().and_then(VecDeque::pop_front) {
                            let _ = asked.send(answer);
                        }
                    }
                }
                Ok(None) => break,
                Err(_) => break 'connection,
            }
        }
        bytes.drain(..taken);
        match read.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    broken.store(true, Ordering::Release);
    *open.lock().expect("no holder of this lock panics") = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::TcpListener;

    /// Answers are lines.
    struct Lines;

    impl Shape for Lines {
        type Reply = usize;

        fn cut(&mut self, bytes: &[u8]) -> Result<Option<(usize, Cut<usize>)>> {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            Ok(end.map(|end| (end + 1, Cut::Reply(end))))
        }
    }

    /// A store closes the connection while nothing is being asked: the next question must fail, not wait for
    /// ever.
    #[tokio::test]
    async fn a_question_behind_the_end_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (near, accepted) = tokio::join!(connecting, listener.accept());
        let mut far = accepted.unwrap().0;
        let pipelined = Pipelined::start(near.unwrap(), Vec::new(), Lines).unwrap();
        let first = pipelined.put(b"?".to_vec()).unwrap();
        far.write_all(b"four\n").await.unwrap();
        assert_eq!(first.await.unwrap(), 4);
        far.shutdown().await.unwrap();
        while !pipelined.broken() {
            tokio::task::yield_now().await;
        }
        let asked = tokio::time::timeout(Duration::from_secs(20), pipelined.ask(b"?".to_vec())).await;
        assert!(asked.expect("an answer, or none").is_err());
    }
}
