//! `tenure top`: the cluster at a glance, kept up to date. On a terminal it fills the screen until `q`;
//! anywhere else it says everything once.

use std::io::{self, IsTerminal, Read, Write};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_client::{ClientTls, Credential, Endpoints, proto};
use tenure_clock::{Clock, SystemClock};
use tenure_core::Moment;
use tenure_tls::Protocol;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::fence::known_fences;
use crate::args::Length;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::top::{Frame, Glance, Numbers, Sort, render};
use crate::render::{Form, Paint};
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure top                       the cluster, what happens, and the leases with the least left
  tenure top settlement/           only resources that begin like this
  tenure top --sort waiters        the most wanted first
  tenure top | cat                 once, as text
  tenure top --json | jq .metrics  once, for programs

Keys: q or Ctrl-C ends it, s sorts by the next column, arrows, space and b scroll.";

/// How long a node may take to send its metrics: they are a courtesy, not worth waiting for.
const METRICS_WITHIN: Duration = Duration::from_secs(1);
/// More than any screen shows, and as many as one page of a list has.
const LEASES_READ: u32 = 1_000;
/// How wide the text is where there is no screen.
const WIDTH_TEXT: usize = 120;
/// After so long without an answer the screen says that it is old. Longer than any ordinary look takes.
const SILENT_AFTER: Duration = Duration::from_secs(3);

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

/// Shows it until it is stopped, or once.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let output = context.output;
    let live = !output.is_json() && matches!(output.form(), Form::Terminal(_)) && io::stdout().is_terminal();
    if live {
        return watch(args, context).await;
    }
    let mut glance = look(&args.prefix, context).await?;
    glance.sort(args.sort);
    let json = || {
        json!({
            "cluster": shapes::value(&glance.cluster),
            "metrics": glance.numbers.as_ref().map(shapes::value),
            "leases": glance.leases.iter().map(shapes::value).collect::<Vec<_>>(),
        })
    };
    let frame = Frame { height: None, width: WIDTH_TEXT, skipped: 0, trouble: None, keys: None };
    output.tell(json, |form| render(&glance, None, &frame, form.paint()))?;
    Ok(if glance.cluster.leader.is_none() { Exit::Unreachable } else { Exit::Done })
}

/// What is on the screen.
struct View {
    sort: Sort,
    skipped: usize,
    now: Option<(Glance, Moment)>,
    before: Option<(Glance, Moment)>,
    /// Why nothing newer is known, in the words of the last failure.
    trouble: Option<String>,
}

/// What a key asks for.
enum Asked {
    End,
    Nothing,
}

/// The live screen. Asking may take as long as `--timeout` when the store has gone; keys, signals and the
/// window's size are received meanwhile.
async fn watch(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let listen = |kind| signal(kind).map_err(CommandError::Output);
    let mut interrupted = listen(SignalKind::interrupt())?;
    let mut terminated = listen(SignalKind::terminate())?;
    let mut hung_up = listen(SignalKind::hangup())?;
    let mut resized = listen(SignalKind::window_change())?;
    let mut suspended = listen(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let screen = Screen::enter()?;
    let (_open, mut keys) = keys();
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let mut view = View { sort: args.sort, skipped: 0, now: None, before: None, trouble: None };
    let mut first = true;
    loop {
        let pause = if first { Duration::ZERO } else { args.every.get() };
        let next = async {
            tokio::time::sleep(pause).await;
            look(&args.prefix, context).await
        };
        tokio::pin!(next);
        let next_events = loop {
            screen.show(&view.draw(context.output.form().paint()))?;
            tokio::select! {
                biased;
                _ = interrupted.recv() => return Ok(Exit::Done),
                _ = terminated.recv() => return Ok(Exit::Done),
                _ = hung_up.recv() => return Ok(Exit::Done),
                _ = suspended.recv() => screen.step_aside()?,
                _ = resized.recv() => {}
                Some(key) = keys.recv() => {
                    if let Asked::End = view.press(key) {
                        return Ok(Exit::Done);
                    }
                }
                next_events = &mut next => break next_events,
                _ = seconds.tick() => {}
            }
        };
        first = false;
        match next_events {
            Ok(glance) => view.take(glance),
            Err(failure) => view.trouble = Some(failure.words().replace('\n', " ")),
        }
    }
}

impl View {
    fn take(&mut self, mut glance: Glance) {
        glance.sort(self.sort);
        self.trouble = None;
        self.before = self.now.replace((glance, SystemClock.now()));
    }

    fn press(&mut self, key: Key) -> Asked {
        let page = size().1.saturating_sub(12).max(1);
        let last = self.now.as_ref().map_or(0, |(glance, _)| glance.rows().saturating_sub(1));
        match key {
            Key::Sign(b'q' | b'Q') => return Asked::End,
            Key::Sign(b's' | b'S') => {
                self.sort = self.sort.next();
                self.skipped = 0;
                if let Some((glance, _)) = &mut self.now {
                    glance.sort(self.sort);
                }
            }
            Key::Sign(b'j') | Key::Down => self.skipped = (self.skipped + 1).min(last),
            Key::Sign(b'k') | Key::Up => self.skipped = self.skipped.saturating_sub(1),
            Key::Sign(b' ') | Key::PageDown => self.skipped = (self.skipped + page).min(last),
            Key::Sign(b'b') | Key::PageUp => self.skipped = self.skipped.saturating_sub(page),
            Key::Sign(b'g') => self.skipped = 0,
            Key::Sign(_) => {}
        }
        Asked::Nothing
    }

    fn draw(&self, paint: Paint) -> String {
        let (width, height) = size();
        let Some((glance, at)) = &self.now else {
            let why = self.trouble.as_deref().unwrap_or("asking");
            return format!("{why}\n\nq ends it\n");
        };
        let silent = SystemClock.now().longest_since(*at);
        let trouble = match &self.trouble {
            _ if silent < SILENT_AFTER => None,
            None => Some(format!("no answer for {}s; this is from before", silent.as_secs())),
            Some(why) => Some(format!("no answer for {}s; this is from before: {why}", silent.as_secs())),
        };
        let keys = format!("q ends it  s sorts (by {})  arrows, space and b scroll", self.sort.word());
        let since = self.before.as_ref().map(|(before, then)| (before, at.longest_since(*then)));
        let frame = Frame { height: Some(height), width, skipped: self.skipped, trouble, keys: Some(keys) };
        render(glance, since, &frame, paint)
    }
}

async fn look(prefix: &str, context: &Context<'_>) -> Result<Glance, CommandError> {
    let request = proto::ClusterStatusRequest { with_state_hash: false };
    let send = |channel, request| async move { ClusterClient::new(channel).status(request).await };
    let cluster = tenure_wire::json::ClusterStatus::from(&context.read(request, send).await?);
    // Without a leader the node's own state is shown: better old than nothing, and the heading says so.
    let stale = cluster.leader.is_none();
    let request = proto::LeaseListRequest {
        prefix: prefix.to_owned(),
        limit: Some(LEASES_READ),
        after: String::new(),
        stale,
    };
    let send = |channel, request| async move { LeasesClient::new(channel).list(request).await };
    let page = context.read(request, send).await?;
    let fences = if stale { Vec::new() } else { known_fences(prefix, context).await? };
    let leases = page.leases.iter().map(|lease| tenure_wire::json::Lease::of(lease, &fences)).collect();
    let numbers = tokio::time::timeout(METRICS_WITHIN, metrics(context.endpoints)).await;
    let numbers = numbers.ok().flatten().map(|page| Numbers::read(&page));
    Ok(Glance { cluster, leases, more: !page.next.is_empty(), numbers })
}

/// The page at `/metrics` of the first endpoint that gives it.
async fn metrics(endpoints: &Endpoints) -> Option<String> {
    for endpoint in endpoints.as_slice() {
        if let Ok(page) = get_metrics(endpoints.tls(), endpoints.credential(), &endpoint.to_string()).await {
            return Some(page);
        }
    }
    None
}

/// One request, one answer, one connection: less than a library for it would be.
async fn get_metrics(
    tls: Option<&ClientTls>,
    credential: Option<&Credential>,
    address: &str,
) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    match tls {
        None => ask_for_metrics(stream, credential, address).await,
        Some(tls) => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            let stream = tls.connect(host, stream, Protocol::Http1).await?;
            ask_for_metrics(stream, credential, address).await
        }
    }
}

async fn ask_for_metrics(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    credential: Option<&Credential>,
    address: &str,
) -> io::Result<String> {
    let head = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n");
    stream.write_all(head.as_bytes()).await?;
    if let Some(credential) = credential {
        stream.write_all(b"Authorization: ").await?;
        stream.write_all(credential.authorization().as_bytes()).await?;
        stream.write_all(b"\r\n").await?;
    }
    stream.write_all(b"\r\n").await?;
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
        let screen = Screen { usual: tcgetattr(io::stdin()).ok() };
        screen.take()?;
        Ok(screen)
    }

    fn take(&self) -> io::Result<()> {
        if let Some(usual) = &self.usual {
            let mut single = usual.clone();
            single.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            tcsetattr(io::stdin(), OptionalActions::Now, &single)?;
        }
        self.write("\u{1b}[?1049h\u{1b}[?25l")
    }

    fn give_back(&self) {
        // Whoever closed the terminal needs nothing back.
        let _ = self.write("\u{1b}[?25h\u{1b}[?1049l");
        if let Some(usual) = &self.usual {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, usual);
        }
    }

    /// Ctrl-Z: the shell gets its terminal as it was, and the screen comes back with `fg`.
    fn step_aside(&self) -> io::Result<()> {
        self.give_back();
        kill_process(getpid(), Signal::STOP)?;
        self.take()
    }

    /// Writes over what was there, so that nothing flickers.
    fn show(&self, text: &str) -> io::Result<()> {
        // No new line after the last: on a full screen it would scroll.
        let lines = text.trim_end_matches('\n').replace('\n', "\u{1b}[K\r\n");
        self.write(&format!("\u{1b}[H{lines}\u{1b}[K\u{1b}[J"))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Sign(u8),
    Up,
    Down,
    PageUp,
    PageDown,
}

/// Keys from what a terminal sends: most are one byte, those that move are a sequence.
#[derive(Default)]
struct Keyboard(Vec<u8>);

impl Keyboard {
    fn take(&mut self, byte: u8) -> Option<Key> {
        match (self.0.as_slice(), byte) {
            ([], 0x1b)
            | ([0x1b], b'[' | b'O')
            | ([0x1b, _], b'0'..=b'9' | b';')
            | ([0x1b, _, _], b'0'..=b'9') => {
                self.0.push(byte);
                None
            }
            ([], _) => Some(Key::Sign(byte)),
            (sequence, last) => {
                let key = match (sequence.get(2), last) {
                    (None, b'A') => Some(Key::Up),
                    (None, b'B') => Some(Key::Down),
                    (Some(b'5'), b'~') => Some(Key::PageUp),
                    (Some(b'6'), b'~') => Some(Key::PageDown),
                    _ => None,
                };
                self.0.clear();
                key
            }
        }
    }
}

/// What is typed, and what keeps the line open when nothing can be typed any more. The thread reads until the
/// process ends: a blocked read cannot be called off.
fn keys() -> (mpsc::Sender<Key>, mpsc::Receiver<Key>) {
    let (sender, keys) = mpsc::channel(16);
    let typed = sender.clone();
    std::thread::spawn(move || {
        let mut keyboard = Keyboard::default();
        for byte in io::stdin().lock().bytes().map_while(Result::ok) {
            if let Some(key) = keyboard.take(byte)
                && typed.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    (sender, keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_move_are_sequences() {
        let mut keyboard = Keyboard::default();
        let mut typed =
            |bytes: &[u8]| bytes.iter().filter_map(|byte| keyboard.take(*byte)).collect::<Vec<_>>();
        assert_eq!(typed(b"q"), [Key::Sign(b'q')]);
        assert_eq!(typed(b"\x1b[A\x1b[B"), [Key::Up, Key::Down]);
        assert_eq!(typed(b"\x1bOA"), [Key::Up]);
        assert_eq!(typed(b"\x1b[5~\x1b[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(
            typed(b"\x1b[15~s"),
            [Key::Sign(b's')],
            "a key that means nothing here is passed over whole"
        );
    }
}
