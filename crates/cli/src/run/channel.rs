//! The messages between `run` and its guardian: one JSON object per line, over a socket that only the two
//! have.
//!
//! Both are always the same binary, since `run` starts its guardian from its own file, so nobody else reads
//! this format. The guardian's end of the socket is its standard input; the child's standard input is passed
//! over the socket as the first message.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_client::{Credential, Endpoints};
use tenure_clock::MachineMoment;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::UnixStream;

use crate::args::TlsArgs;

use super::logic::Ending;

/// A deadline on its way: what the two clocks will show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    boot: Duration,
    raw: Duration,
}

impl From<MachineMoment> for Deadline {
    fn from(moment: MachineMoment) -> Deadline {
        let (boot, raw) = moment.readings();
        Deadline { boot, raw }
    }
}

impl From<Deadline> for MachineMoment {
    fn from(deadline: Deadline) -> MachineMoment {
        MachineMoment::from_readings(deadline.boot, deadline.raw)
    }
}

/// From `run` to its guardian.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToGuardian {
    /// The lease is ours: start the child.
    Start {
        /// Variables of its environment.
        environment: Vec<(String, String)>,
        /// When the lease may be another's.
        deadline: Deadline,
        /// How long before that everything is killed.
        kill_before: Duration,
        /// What ends when `run` and its tree are dead.
        session: String,
        /// Where that is to be reported.
        endpoints: String,
        /// What is presented there: the text of a credential file, or where a token is. Over a socket that nobody
        /// else has, as the session's id is.
        credential: Option<Presented>,
        /// How it is reached over TLS.
        tls: Box<TlsArgs>,
    },
    /// The lease was renewed, or will not be.
    Deadline(Deadline),
}

/// A credential on its way to the guardian.
#[derive(Clone, Serialize, Deserialize)]
pub enum Presented {
    /// The text of a credential file.
    File(String),
    /// A file that somebody keeps a token in.
    Token(PathBuf),
}

impl std::fmt::Debug for Presented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Presented(…)")
    }
}

impl Presented {
    /// What these endpoints carry.
    pub fn of(endpoints: &Endpoints) -> Option<Presented> {
        let credential = endpoints.credential()?;
        Some(match credential.file() {
            Some(file) => Presented::File(file.reveal().to_string()),
            None => Presented::Token(credential.path()?.to_owned()),
        })
    }

    /// The credential, if it is still there.
    pub fn credential(self) -> Option<Credential> {
        match self {
            Presented::File(text) => text.parse().ok(),
            Presented::Token(path) => Credential::load(path).ok(),
        }
    }
}

/// From the guardian to its `run`.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromGuardian {
    /// The child was started.
    Started {
        /// Its number.
        pid: i32,
    },
    /// The child could not be started.
    Failed {
        /// Why.
        why: String,
    },
    /// This deadline is known.
    Confirmed(Deadline),
    /// The child has ended.
    Ended(Ended),
}

/// How a child ended, on its way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl From<Ending> for Ended {
    fn from(ending: Ending) -> Ended {
        match ending {
            Ending::Exited(code) => Ended::Exited(code),
            Ending::Signaled(signal) => Ended::Signaled(signal),
        }
    }
}

impl From<Ended> for Ending {
    fn from(ended: Ended) -> Ending {
        match ended {
            Ended::Exited(code) => Ending::Exited(code),
            Ended::Signaled(signal) => Ending::Signaled(signal),
        }
    }
}

/// One end of the socket.
#[derive(Debug)]
pub struct Channel {
    lines: Lines<BufReader<UnixStream>>,
    /// Written to past the runtime, which would wait until the socket is writable.
    writer: Socket,
}

impl Channel {
    /// Makes the runtime look after a socket.
    pub fn new(socket: Socket) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        let writer = socket.try_clone()?;
        let reader = UnixStream::from_std(socket)?;
        Ok(Channel { lines: BufReader::new(reader).lines(), writer })
    }

    /// Says something, without ever waiting: who does not listen must not stop us. What is lost is not
    /// confirmed, and what is not confirmed is not relied on.
    pub fn send(&self, message: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(message) {
            line.push(b'\n');
            let _ = (&self.writer).write(&line);
        }
    }

    /// What the other side says next; `None` once there is nobody.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Option<M> {
        let line = self.lines.next_line().await.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}

/// Hands a file over.
pub fn hand_over(socket: &Socket, file: impl AsFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Takes the file that is handed over; waits for it.
pub fn take_over(socket: &Socket) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    files.next().ok_or_else(|| io::Error::other("no file was handed over"))
}
