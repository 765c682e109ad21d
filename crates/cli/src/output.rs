//! Where output goes: stdout is data, stderr is for messages. Decides, once, between a terminal, a pipe and
//! JSON; `render/` decides what the lines say.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::args::{ColorChoice, Globals};
use crate::render::{Form, Paint};

/// The two outputs of the process.
#[derive(Debug)]
pub struct Output {
    json: bool,
    form: Form,
    talk_paint: Paint,
    talk_terminal: bool,
}

impl Output {
    /// Looks at the options and at what stdout and stderr are.
    pub fn new(globals: &Globals) -> Self {
        let colored = |terminal: bool| match globals.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            // An empty variable counts as absent, as no-color.org asks.
            ColorChoice::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
        };
        let terminal = io::stdout().is_terminal();
        let form = if terminal || globals.color == ColorChoice::Always {
            Form::Terminal(Paint::new(colored(terminal)))
        } else {
            Form::Plain
        };
        let talk_terminal = io::stderr().is_terminal() && !globals.json;
        let talk_paint = Paint::new(colored(io::stderr().is_terminal()));
        Self { json: globals.json, form, talk_paint, talk_terminal }
    }

    /// Whether JSON was asked for.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether stdout is for eyes or for programs.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Writes data as lines: the JSON if that was asked for, else the text.
    pub fn tell(&self, json: impl FnOnce() -> Value, text: impl FnOnce(Form) -> String) -> io::Result<()> {
        if self.json { self.line(&json().to_string()) } else { self.line(&text(self.form)) }
    }

    /// Writes one line, or several; nothing for an empty text.
    pub fn line(&self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            stdout.write_all(b"\n")?;
        }
        stdout.flush()
    }

    /// Writes bytes as they are; a terminal gets a line end if they have none.
    pub fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        if matches!(self.form, Form::Terminal(_)) && !bytes.ends_with(b"\n") {
            stdout.write_all(b"\n")?;
        }
        stdout.flush()
    }

    /// Says something on stderr. Not with `--json`: then only programs listen.
    pub fn talk(&self, text: &str) {
        if !self.json {
            // Nobody listening is no reason to fail.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Whether a person at a terminal reads stderr.
    pub fn talks_to_terminal(&self) -> bool {
        self.talk_terminal
    }

    /// Says something on stderr that the next thing said this way is written over; an empty text clears it.
    /// Where no line can be written over, it is a line like any other.
    pub fn talk_over(&self, text: &str) {
        if self.talk_terminal {
            let _ = write!(io::stderr(), "\r{text}\x1b[K");
        } else if !text.is_empty() {
            self.talk(text);
        }
    }

    /// The colours of stderr.
    pub fn talk_paint(&self) -> Paint {
        self.talk_paint
    }

    /// Says what went wrong, on stderr.
    pub fn complain(&self, text: &str) {
        let _ = writeln!(io::stderr(), "{} {text}", self.talk_paint.bad("tenure:"));
    }

    /// Says what went wrong as one object, on stderr.
    pub fn talk_json(&self, value: &Value) {
        let _ = writeln!(io::stderr(), "{value}");
    }
}
