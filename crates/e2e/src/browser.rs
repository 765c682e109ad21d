//! A real browser, driven over its own debugging protocol: enough of it to look at a page as a user does.
//!
//! One process, one page, one socket. The protocol is JSON over a WebSocket, and the few frames that it needs are
//! written here: a driver from elsewhere would cost more build time than these lines take to read.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::program::find;
use crate::scratch::Scratch;
use crate::wait::until_some;

/// The program.
pub const BROWSER: &str = "chromium";
/// How long it may take to start, or to answer. A loaded machine with two cores is slow.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The size of a screen.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// With touch, and as a phone lays pages out.
    pub phone: bool,
    /// Whether the user prefers dark colours.
    pub dark: bool,
}

impl Screen {
    /// A laptop by day.
    pub const DESKTOP: Screen = Screen { width: 1280, height: 860, phone: false, dark: false };
    /// A laptop at night.
    pub const NIGHT: Screen = Screen { dark: true, ..Screen::DESKTOP };
    /// A phone.
    pub const PHONE: Screen = Screen { width: 390, height: 844, phone: true, dark: false };
}

/// A browser with one page. It is killed when dropped.
pub struct Browser {
    child: Child,
    socket: RefCell<BufReader<TcpStream>>,
    next: Cell<u64>,
    seen: RefCell<Seen>,
    _profile: Scratch,
}

/// What the page did without being asked.
#[derive(Debug, Default)]
struct Seen {
    requests: Vec<String>,
    complaints: Vec<String>,
}

impl Browser {
    /// Starts it with an empty page.
    pub fn start() -> Browser {
        let profile = Scratch::new("browser");
        let mut command = Command::new(find(BROWSER).expect("the browser is installed"));
        command.args(["--headless", "--disable-gpu", "--disable-background-networking", "--disable-sync"]);
        command.args([
            "--no-first-run",
            "--disable-extensions",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
        ]);
        // As root its sandbox does not work, and the only pages it sees are ours.
        if rustix::process::geteuid().is_root() {
            command.arg("--no-sandbox");
        }
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("the browser can be started");
        let port = until_some("the browser says where it listens", ANSWER_WITHIN, || port(profile.path()));
        let target = until_some("the browser has a page", ANSWER_WITHIN, || page_target(port));
        let socket = connect(port, &target);
        let browser = Browser {
            child,
            socket: RefCell::new(BufReader::new(socket)),
            next: Cell::new(0),
            seen: RefCell::default(),
            _profile: profile,
        };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.screen(Screen::DESKTOP);
        browser
    }

    /// Sets the screen.
    pub fn screen(&self, screen: Screen) {
        let Screen { width, height, phone, dark } = screen;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        self.call("Emulation.setTouchEmulationEnabled", json!({"enabled": phone}));
        let scheme = json!({"name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" }});
        self.call("Emulation.setEmulatedMedia", json!({"features": [scheme]}));
    }

    /// Goes to an address, as if typed, and waits until the page is there.
    #[track_caller]
    pub fn open(&self, address: &str) {
        let answer = self.call("Page.navigate", json!({"url": address}));
        assert!(answer["errorText"].is_null(), "{address}: {}", answer["errorText"]);
        self.until("the page has loaded", "document.readyState === 'complete'");
    }

    /// What an expression is worth; a promise is waited for.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", asked);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true; panics with `what`, and with what is to be read on the page, if it never is.
    #[track_caller]
    pub fn until(&self, what: &str, condition: &str) {
        let started = std::time::Instant::now();
        while self.evaluate(&format!("Boolean({condition})")) != json!(true) {
            if started.elapsed() > ANSWER_WITHIN {
                let text = self.evaluate("document.body.innerText.slice(0, 4000)");
                panic!(
                    "not within {ANSWER_WITHIN:?}: {what}; the page says\n{}",
                    text.as_str().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key: its name (`Tab`, `ArrowDown`) or the one sign that it writes.
    pub fn press(&self, key: &str) {
        let text = if key.chars().count() == 1 { json!(key) } else { Value::Null };
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "End" => 35,
            "ArrowDown" => 40,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && text.is_string() {
                event["text"] = text.clone();
            } else if kind == "keyDown" && key == "Enter" {
                event["text"] = json!("\r");
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types text into what has the focus.
    pub fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Waits until what was just changed has been drawn: two frames have passed.
    pub fn drawn(&self) {
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))",
        );
    }

    /// The whole page as a picture.
    pub fn picture(&self) -> Vec<u8> {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let height = size["height"].as_f64().unwrap_or(800.0).min(3_000.0);
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1});
        let asked = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer = self.call("Page.captureScreenshot", asked);
        let data = answer["data"].as_str().expect("a picture is text in base64");
        STANDARD.decode(data).expect("a picture is base64")
    }

    /// From now on what the page offers for saving is saved here.
    pub fn save_into(&self, folder: &Path) {
        let path = folder.display().to_string();
        self.call("Browser.setDownloadBehavior", json!({"behavior": "allow", "downloadPath": path}));
    }

    /// Every address that the page asked for.
    pub fn requests(&self) -> Vec<String> {
        self.evaluate("0");
        self.seen.borrow().requests.clone()
    }

    /// What the page threw, and what the browser had to say about it, since the last time.
    pub fn complaints(&self) -> Vec<String> {
        self.evaluate("0");
        std::mem::take(&mut self.seen.borrow_mut().complaints)
    }

    /// Calls a method of the protocol and waits for its answer.
    #[track_caller]
    fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.next.get() + 1;
        self.next.set(id);
        let message = json!({"id": id, "method": method, "params": parameters}).to_string();
        let mut socket = self.socket.borrow_mut();
        socket.get_mut().write_all(&frame(message.as_bytes())).expect("the browser listens");
        loop {
            let message = receive(&mut *socket);
            if message["id"] == json!(id) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.seen.borrow_mut().take_in(&message);
        }
    }
}

impl Seen {
    fn take_in(&mut self, message: &Value) {
        let about = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                self.requests.push(about["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            "Runtime.exceptionThrown" => self.complaints.push(about["exceptionDetails"].to_string()),
            "Log.entryAdded" if about["entry"]["level"] == "error" => {
                self.complaints.push(format!("{}: {}", about["entry"]["url"], about["entry"]["text"]));
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where it listens: it writes that into its profile.
fn port(profile: &Path) -> Option<u16> {
    let text = std::fs::read_to_string(profile.join("DevToolsActivePort")).ok()?;
    let mut lines = text.lines();
    let port = lines.next()?.parse().ok()?;
    // The second line is written last.
    lines.next().map(|_| port)
}

/// The path of the page's own socket.
fn page_target(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
    write!(stream, "GET /json/list HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").ok()?;
    let mut reader = BufReader::new(stream);
    let length = headers(&mut reader).into_iter().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length:")
            .and_then(|length| length.trim().parse().ok())
    })?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let targets: Value = serde_json::from_slice(&body).ok()?;
    let page = targets.as_array()?.iter().find(|target| target["type"] == "page")?;
    let address = page["webSocketDebuggerUrl"].as_str()?;
    address.strip_prefix("ws://")?.find('/').map(|at| address["ws://".len() + at..].to_owned())
}

fn connect(port: u16, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the browser listens");
    stream.set_read_timeout(Some(ANSWER_WITHIN)).expect("a socket has a timeout");
    // The key only proves that the other side speaks the protocol; ours is known to.
    let asked = format!(
        "GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGVudXJlIGxvb2tzIGF0IGl0\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).expect("the browser listens");
    let mut byte = [0];
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("the browser answers");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

fn headers(reader: &mut impl BufRead) -> Vec<String> {
    reader.lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect()
}

/// A text frame. A client must mask what it sends; with zeros, because there is nothing to protect from ourselves.
fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x81];
    match message.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(message);
    frame
}

/// The next message; one may come in several frames.
fn receive(socket: &mut impl Read) -> Value {
    let mut take = |length: usize| {
        let mut bytes = vec![0; length];
        socket.read_exact(&mut bytes).expect("the browser answers");
        bytes
    };
    let mut message = Vec::new();
    loop {
        let head = take(2);
        let length = match head[1] & 0x7f {
            126 => u64::from(u16::from_be_bytes(take(2).try_into().expect("two bytes"))),
            127 => u64::from_be_bytes(take(8).try_into().expect("eight bytes")),
            length => u64::from(length),
        };
        let content = take(usize::try_from(length).expect("a message fits into memory"));
        match head[0] & 0x0f {
            0 | 1 => message.extend(content),
            8 => panic!("the browser closed the connection"),
            _ => continue,
        }
        if head[0] & 0x80 != 0 {
            return serde_json::from_slice(&message).expect("the protocol is JSON");
        }
    }
}
