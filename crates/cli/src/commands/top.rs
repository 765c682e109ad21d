//! `tenure top`: the cluster at a glance, kept up to date. On a terminal it fills the screen until `q`; anywhere else it
//! says everything once.

use std::io::{self, IsTerminal, Read, Write};
use std::time::Duration;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_client::{Endpoints, proto};
use tenure_clock::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::args::Length;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::Form;
use crate::render::top::{Glance, Numbers, render};
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure top                       the cluster, what happens in it, and the leases with the least left
  tenure top settlement/           only resources that begin like this
  tenure top --sort waiters        the most wanted first
  tenure top | cat                 once, as text
  tenure top --json | jq .metrics  once, for programs

Keys: q ends it.";

/// How long a node may take to send its metrics: they are a courtesy, not worth waiting for.
const METRICS_WITHIN: Duration = Duration::from_secs(1);
/// More than any screen shows, and as many as one page of a list has.
const LEASES_READ: u32 = 1_000;

/// Show the cluster and its leases at a glance, kept up to date
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Only resources whose names begin like this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub every: Length,
    /// Which leases come first
    #[arg(long, value_enum, default_value_t = Sort::Left)]
    pub sort: Sort,
}

/// Which leases come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Those with the least left of their TTL.
    Left,
    /// Those that most wait for.
    Waiters,
    /// The newest grants.
    Token,
    /// By name.
    Name,
}

/// Shows it until it is told to stop, or once.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, Failure> {
    let output = context.output;
    let live = !output.is_json() && matches!(output.form(), Form::Terminal(_)) && io::stdout().is_terminal();
    if !live {
        let glance = look(&args, context).await?;
        let json = || {
            json!({
                "cluster": shapes::value(&glance.cluster),
                "metrics": glance.numbers.as_ref().map(shapes::value),
                "leases": glance.leases.iter().map(shapes::value).collect::<Vec<_>>(),
            })
        };
        output.tell(json, |form| render(&glance, None, usize::MAX, 100, form.paint()))?;
        return Ok(if glance.cluster.leader.is_none() { Exit::Unreachable } else { Exit::Done });
    }
    let screen = Screen::enter()?;
    let (_open, mut keys) = keys();
    let clock = SystemClock;
    let mut before: Option<(Glance, tenure_core::Moment)> = None;
    loop {
        let (width, height) = size();
        let now = clock.now();
        let text = match look(&args, context).await {
            Ok(glance) => {
                let since = before.as_ref().map(|(glance, at)| (glance, now.longest_since(*at)));
                let text = render(&glance, since, height, width, output.form().paint());
                before = Some((glance, now));
                text
            }
            Err(failure) => format!("{}\n\nstill asking; q ends it\n", failure.words()),
        };
        screen.show(&text)?;
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
            Some(key) = keys.recv() => {
                if key.eq_ignore_ascii_case(&b'q') {
                    return Ok(Exit::Done);
                }
            }
            () = tokio::time::sleep(args.every.get()) => {}
        }
    }
}

async fn look(args: &Args, context: &Context<'_>) -> Result<Glance, Failure> {
    let request = proto::ClusterStatusRequest { with_state_hash: false };
    let send = |channel, request| async move { ClusterClient::new(channel).status(request).await };
    let cluster = shapes::cluster(&context.read(request, send).await?);
    // Without a leader the node's own state is shown: better old than nothing, and the heading says so.
    let request = proto::LeaseListRequest {
        prefix: args.prefix.clone(),
        limit: Some(LEASES_READ),
        after: String::new(),
        stale: cluster.leader.is_none(),
    };
    let send = |channel, request| async move { LeasesClient::new(channel).list(request).await };
    let page = context.read(request, send).await?;
    let mut leases: Vec<_> = page.leases.iter().map(|lease| shapes::lease(lease, &[])).collect();
    let left = |lease: &tenure_wire::json::Lease| {
        lease
            .holders
            .iter()
            .map(|holder| holder.remaining_ms.saturating_mul(1_000) / holder.ttl_ms.max(1))
            .min()
    };
    match args.sort {
        Sort::Left => leases.sort_by_key(left),
        Sort::Waiters => leases.sort_by_key(|lease| std::cmp::Reverse(lease.waiting)),
        Sort::Token => leases.sort_by_key(|lease| std::cmp::Reverse(lease.token)),
        Sort::Name => {}
    }
    let numbers = tokio::time::timeout(METRICS_WITHIN, metrics(context.endpoints)).await;
    let numbers = numbers.ok().flatten().map(|page| Numbers::read(&page));
    Ok(Glance { cluster, leases, more: !page.next.is_empty(), numbers })
}

/// The page at `/metrics` of the first endpoint that gives it.
async fn metrics(endpoints: &Endpoints) -> Option<String> {
    for endpoint in endpoints.as_slice() {
        if let Ok(page) = get_metrics(&endpoint.to_string()).await {
            return Some(page);
        }
    }
    None
}

/// One request, one answer, one connection: less than a library for it would be.
async fn get_metrics(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, page)) if head.contains(" 200 ") => Ok(page.to_owned()),
        _ => Err(io::Error::other("no metrics")),
    }
}

fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// The terminal's other screen, with keys read one by one; given back when dropped.
struct Screen {
    usual: Option<Termios>,
}

impl Screen {
    fn enter() -> io::Result<Screen> {
        let usual = tcgetattr(io::stdin()).ok();
        if let Some(usual) = &usual {
            let mut single = usual.clone();
            single.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            tcsetattr(io::stdin(), OptionalActions::Now, &single)?;
        }
        let screen = Screen { usual };
        screen.write("\u{1b}[?1049h\u{1b}[?25l")?;
        Ok(screen)
    }

    /// Writes over what was there, so that nothing flickers.
    fn show(&self, text: &str) -> io::Result<()> {
        let lines = text.replace('\n', "\u{1b}[K\r\n");
        self.write(&format!("\u{1b}[H{lines}\u{1b}[J"))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Whoever closed the terminal needs nothing back.
        let _ = self.write("\u{1b}[?25h\u{1b}[?1049l");
        if let Some(usual) = &self.usual {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, usual);
        }
    }
}

/// What is typed, and what keeps the line open when nothing can be typed any more. The thread reads until the process
/// ends: a blocked read cannot be called off.
fn keys() -> (mpsc::Sender<u8>, mpsc::Receiver<u8>) {
    let (sender, keys) = mpsc::channel(16);
    let typed = sender.clone();
    std::thread::spawn(move || {
        for key in io::stdin().lock().bytes().map_while(Result::ok) {
            if typed.blocking_send(key).is_err() {
                return;
            }
        }
    });
    (sender, keys)
}
