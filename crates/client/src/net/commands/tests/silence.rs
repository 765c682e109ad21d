//! Nodes that accept connections, answer every ping and then send nothing, as a leader does that has lost its
//! quorum. Over real HTTP/2 in virtual time, so that timeouts of hours take no time.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tenure_wire::proto::stream_server::{Stream, StreamServer};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Service;
use tonic::{Request, Response, Status, async_trait};

use super::*;
use crate::dial::{Dial, Dialled};
use crate::execution::Tasks;
use crate::net::patience::{DOUBLINGS_MAX, WAIT_MAX, WAIT_MIN};

/// One step of silence, where nothing shorter is wanted.
const STEP: Duration = Duration::from_millis(250);

/// What a node does with the commands that reach it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Opens streams, and never says a word on them.
    Unwelcoming,
    /// Welcomes and attaches: both it can do alone. It has events, too.
    Mute,
    /// Answers a release at once, and an acquire with its place in the queue.
    Serves,
    /// Answers one command after the other, each so long after the one before it.
    Slow(Duration),
}

/// One node, and how many streams were opened on it.
#[derive(Clone)]
struct Scripted {
    manner: Manner,
    streams: Arc<AtomicU32>,
}

impl Scripted {
    fn new(manner: Manner) -> Scripted {
        Scripted { manner, streams: Arc::default() }
    }

    fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }
}

fn said(frame: Option<u64>, content: Content, credits: u32) -> Result<proto::ServerFrames, Status> {
    let frame = proto::ServerFrame { frame, session: id().number.get(), content: Some(content) };
    Ok(proto::ServerFrames { frames: vec![frame], credits })
}

async fn serve(
    manner: Manner,
    mut inbound: Streaming<proto::ClientFrames>,
    outbox: mpsc::Sender<Result<proto::ServerFrames, Status>>,
) {
    if manner != Manner::Unwelcoming {
        let _ = outbox.send(said(None, Content::Welcome(proto::Welcome::default()), 100)).await;
    }
    if manner == Manner::Mute {
        let outbox = outbox.clone();
        tokio::spawn(async move {
            while outbox.send(said(None, Content::PushNoticed(proto::Noticed::default()), 0)).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
    }
    while let Ok(Some(message)) = inbound.message().await {
        for frame in message.frames {
            let answer = match frame.command {
                Some(Asked::Attach(_)) => Content::Attached(proto::Attached::default()),
                _ if manner == Manner::Mute => continue,
                Some(Asked::Acquire(_)) => Content::Queued(proto::StreamQueued { ahead: 1 }),
                _ => Content::Released(proto::StreamReleased { released: true }),
            };
            if let Manner::Slow(pause) = manner {
                tokio::time::sleep(pause).await;
            }
            if outbox.send(said(Some(frame.frame), answer, 1)).await.is_err() {
                return;
            }
        }
    }
}

#[async_trait]
impl Stream for Scripted {
    type CommandsStream = ReceiverStream<Result<proto::ServerFrames, Status>>;
    type RenewalsStream = ReceiverStream<Result<proto::RenewalAnswers, Status>>;

    async fn commands(
        &self,
        request: Request<Streaming<proto::ClientFrames>>,
    ) -> Result<Response<Self::CommandsStream>, Status> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let (outbox, frames) = mpsc::channel(16);
        tokio::spawn(serve(self.manner, request.into_inner(), outbox));
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn renewals(
        &self,
        _: Request<Streaming<proto::RenewalFrames>>,
    ) -> Result<Response<Self::RenewalsStream>, Status> {
        Err(Status::unimplemented("nobody renews here"))
    }
}

/// A network of these nodes: the first is `node-0`.
struct Network(Vec<Scripted>);

impl Dial for Network {
    fn dial(&self, address: String) -> Dialled {
        let index = address.trim_start_matches("node-").split(':').next().and_then(|text| text.parse().ok());
        let node = self.0[index.unwrap_or(usize::MAX)].clone();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let server = StreamServer::new(node);
            let service =
                hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let answer = server.clone().call(request);
                    async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
                });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(theirs), service)
                .await;
        });
        Box::pin(async move { Ok(Box::new(ours) as Box<dyn crate::dial::Connection>) })
    }
}

fn commands(nodes: &[Scripted]) -> Commands {
    let endpoints: Vec<String> = (0..nodes.len()).map(|index| format!("node-{index}:7400")).collect();
    let directory = Directory::new(&endpoints.join(",").parse().expect("endpoints"));
    let dialer = Dialer::over(Arc::new(Network(nodes.to_vec())), &crate::endpoints::Endpoints::default());
    let execution = Execution::Tasks(Tasks::current());
    let commands = Commands::start(directory, dialer, EndpointErrors::default(), &execution);
    commands.listen(id(), Arc::new(|_| {}));
    commands
}

fn caller(number: u64) -> Caller {
    Caller { session: id(), number: Some(number), lowest_awaited: 1 }
}

async fn submit(commands: &Commands, command: Command) -> Result<Done, CallError> {
    let (sender, outcome) = tokio::sync::oneshot::channel();
    commands.submit(command, Box::new(move |answer| drop(sender.send(answer))));
    outcome.await.expect("it has an outcome")
}

async fn release(commands: &Commands, number: u64) -> Result<Done, CallError> {
    let resource = "r".parse().expect("a name");
    submit(
        commands,
        Command::Release { by: caller(number), resource, token: Token::try_from(1u64).ok(), rest: None },
    )
    .await
}

/// A leader cut off from its peers took a release, and answered it when the cut was healed: nobody else was
/// asked meanwhile.
#[tokio::test(start_paused = true)]
async fn a_node_that_answers_nothing_is_left_for_another() {
    for manner in [Manner::Mute, Manner::Unwelcoming] {
        let nodes = [Scripted::new(manner), Scripted::new(Manner::Serves)];
        let commands = commands(&nodes);
        let started = Instant::now();
        let outcome = tokio::time::timeout(Duration::from_secs(3_600), release(&commands, 1)).await;
        let took = started.elapsed();
        outcome.expect("another node is asked").expect("it is released there");
        assert!(took >= WAIT_MAX, "no patience: {took:?}");
        assert!(took <= WAIT_MAX + STEP * 2, "too much of it: {took:?}");
        assert_eq!((nodes[0].streams(), nodes[1].streams()), (1, 1));
        // From here on the one that answers is asked.
        let started = Instant::now();
        release(&commands, 2).await.expect("released");
        assert!(started.elapsed() < STEP, "nobody is waited for");
    }
}

/// An acquire that has to wait has been answered: it waits in the queue, and may stand there for hours.
#[tokio::test(start_paused = true)]
async fn a_long_wait_is_no_silence() {
    let nodes = [Scripted::new(Manner::Serves), Scripted::new(Manner::Mute)];
    let commands = commands(&nodes);
    let acquire = tenure_core::Acquire {
        by: tenure_core::AcquireBy::Session(caller(1)),
        resources: vec!["r".parse().expect("a name")],
        mode: tenure_core::Mode::Exclusive,
        wait: tenure_core::Wait::Forever,
        policies: tenure_core::Policies::default(),
        fences: Vec::new(),
        transmission: None,
    };
    let answer = submit(&commands, Command::Acquire(Box::new(acquire))).await;
    assert!(matches!(answer, Ok(Done::Queued { .. })), "{answer:?}");
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    release(&commands, 2).await.expect("released");
    assert_eq!((nodes[0].streams(), nodes[1].streams()), (1, 0), "it stayed where it was");
}

/// A node that is merely slow answers something all the time; it is not made slower by sending everything
/// again elsewhere.
#[tokio::test(start_paused = true)]
async fn a_slow_node_is_not_left() {
    let pause = WAIT_MAX - STEP * 2;
    let nodes = [Scripted::new(Manner::Slow(pause)), Scripted::new(Manner::Serves)];
    let commands = commands(&nodes);
    let started = Instant::now();
    let commands = &commands;
    tokio::try_join!(release(commands, 1), release(commands, 2), release(commands, 3)).expect("released");
    assert!(started.elapsed() >= pause * 4, "one after the other, and the attaching before them");
    assert_eq!((nodes[0].streams(), nodes[1].streams()), (1, 0));
}

/// Where nobody answers, each round has more patience than the one before it.
#[tokio::test(start_paused = true)]
async fn silence_everywhere_is_not_met_with_a_flood() {
    let nodes = [Scripted::new(Manner::Mute), Scripted::new(Manner::Mute)];
    let commands = commands(&nodes);
    let hour = Duration::from_secs(3_600);
    assert!(tokio::time::timeout(hour, release(&commands, 1)).await.is_err(), "nobody answers");
    let streams = nodes[0].streams() + nodes[1].streams();
    let patience = WAIT_MAX * (1 << DOUBLINGS_MAX);
    let most = 2 * DOUBLINGS_MAX + u32::try_from(hour.as_secs() / patience.as_secs()).expect("few");
    assert!(streams <= most, "{streams} streams in an hour, at most {most} are needed");
    assert!(streams > most / 2, "and it goes on trying: {streams}");
}

/// A session of two seconds waited three for a silent node, and had lost its lease by then.
#[tokio::test(start_paused = true)]
async fn how_long_a_silent_node_is_waited_for_depends_on_the_ttl() {
    for (ttl, most) in [
        (Duration::from_secs(2), WAIT_MIN * 3),
        (Duration::from_secs(10), Duration::from_millis(1_500)),
        (Duration::from_secs(600), WAIT_MAX + STEP * 2),
    ] {
        let nodes = [Scripted::new(Manner::Mute), Scripted::new(Manner::Serves)];
        let commands = commands(&nodes);
        // Two more that have more time: the shortest decides.
        for (number, ttl) in [(7, ttl), (8, ttl * 2), (9, ttl * 3)] {
            let numbers = tenure_core::TimingNumbers::for_ttl(ttl);
            let timing = numbers.checked(&tenure_core::Bounds::default()).expect("they fit together");
            commands.detect_within(SessionNumber::new(number), timing.detect());
        }
        let started = Instant::now();
        release(&commands, 1).await.expect("released by the other node");
        assert!(started.elapsed() <= most, "{:?} at a TTL of {ttl:?}", started.elapsed());
    }
}
