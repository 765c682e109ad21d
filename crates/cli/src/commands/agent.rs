//! `tenure agent`: one per host. Reads flags, opens the socket, and waits for the signal to stop; `agent/`
//! does everything else.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::{Admission, Agent};
use crate::args::{Globals, Length};
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  tenure agent --endpoints db-1:7400,db-2:7400,db-3:7400
  tenure agent --socket /run/user/1000/tenure.sock --report-every 1m
  TENURE_AGENT=unix:/run/tenure.sock my-service     a program that uses the client library

What it does:
  The renewals of all clients of this host that arrive within one tick leave as one message. Each
  rides only because its own client asked, under that client's number, and each client counts its
  deadline from its own send: the agent coalesces, it never vouches. A stopped client is not renewed.
  A session that its opener has for itself is ended at once when the opener is seen dead (by pidfd).

What it is not:
  Something to depend on. A client whose renewal the agent leaves unanswered for a quarter of R sends
  the next one to a node directly, so stopping, killing or restarting the agent costs nobody a lease.
  Give clients TENURE_ENDPOINTS as well as TENURE_AGENT.";

/// Serve the clients of this host over a unix socket: one renewal message per tick for all of them
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where clients connect
    #[arg(long, value_name = "PATH", default_value = "/run/tenure.sock")]
    pub socket: PathBuf,
    /// Who may connect, as the file mode of the socket
    #[arg(long, value_name = "OCTAL", default_value = "600", value_parser = octal)]
    pub mode: u32,
    /// How long renewals are gathered before they leave together. A renewal is late by up to this much, which
    /// must be far below a quarter of any R
    #[arg(long, value_name = "DURATION", default_value = "20ms")]
    pub tick: Length,
    /// Print what it has done so far, again and again
    #[arg(long, value_name = "DURATION")]
    pub report_every: Option<Length>,
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("`{text}` is no file mode; write it as chmod does, such as 660"))
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: Args, globals: &Globals, output: &Output) -> Result<Exit, CommandError> {
    // One thread: what it does is copying, and a host has better use for the others.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::said(Exit::Other, format!("no runtime: {error}")))?;
    runtime.block_on(serve(args, globals, output))
}

async fn serve(args: Args, globals: &Globals, output: &Output) -> Result<Exit, CommandError> {
    if globals.endpoints.as_slice().iter().all(|endpoint| endpoint.socket().is_some()) {
        return Err(CommandError::with_hint(
            Exit::Usage,
            "the agent is given no node",
            "name nodes with --endpoints; a socket is what the agent itself listens at",
        ));
    }
    let listener = listen(&args.socket, args.mode).await?;
    let ours = socket_file(&args.socket);
    let agent = Agent::new(&globals.endpoints, args.tick.get());
    let greeting =
        || json!({ "socket": args.socket.display().to_string(), "endpoints": globals.endpoints.to_string() });
    output.tell(greeting, |form| {
        format!(
            "The agent listens at {} for {}.\nClients find it by TENURE_AGENT=unix:{}\n",
            form.paint().strong(&args.socket.display().to_string()),
            globals.endpoints,
            args.socket.display()
        )
    })?;
    let (mut term, mut interrupt) =
        (signalled(SignalKind::terminate())?, signalled(SignalKind::interrupt())?);
    let report_every = args.report_every.map(Length::get);
    tokio::select! {
        biased;
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
        failed = report(&agent, report_every, output) => failed?,
        () = agent.clone().serve(listener, Admission::new(args.mode)) => {}
    }
    // Best effort: the next agent clears a socket away that nobody listens at. What is not ours any more is
    // left alone.
    if ours.is_some() && ours == socket_file(&args.socket) {
        let _ = std::fs::remove_file(&args.socket);
    }
    Ok(Exit::Done)
}

async fn report(agent: &Agent, every: Option<Duration>, output: &Output) -> Result<(), CommandError> {
    let Some(every) = every.filter(|every| !every.is_zero()) else { return std::future::pending().await };
    let mut every = tokio::time::interval(every);
    loop {
        every.tick().await;
        output.tell(|| agent.counts().json(), |_| agent.counts().words())?;
    }
}

fn signalled(kind: SignalKind) -> Result<tokio::signal::unix::Signal, CommandError> {
    signal(kind)
        .map_err(|error| CommandError::said(Exit::Other, format!("signals cannot be received: {error}")))
}

/// Removes a socket that an agent left behind which was killed: one that nobody listens at.
async fn clear_away(socket: &Path) -> Result<(), CommandError> {
    let refused = |what: String, hint: &str| CommandError::with_hint(Exit::Other, what, hint);
    match UnixStream::connect(socket).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) => {
            return Err(refused(
                format!("whether somebody listens at {} cannot be found out: {error}", socket.display()),
                "name another place with --socket, such as one below $XDG_RUNTIME_DIR",
            ));
        }
        Ok(_) => {
            return Err(refused(
                format!("somebody listens at {} already", socket.display()),
                "one agent per host is enough; stop the other one first, or give this one a --socket of its own",
            ));
        }
    }
    std::fs::remove_file(socket).map_err(|error| {
        refused(
            format!("{} cannot be cleared away: {error}", socket.display()),
            "name another place with --socket, such as one below $XDG_RUNTIME_DIR",
        )
    })
}

/// Which file it is, if it is a socket.
fn socket_file(socket: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(socket).ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

async fn listen(socket: &Path, mode: u32) -> Result<UnixListener, CommandError> {
    let failed = |what: &str, error: io::Error| {
        CommandError::with_hint(
            Exit::Other,
            format!("{} {what}: {error}", socket.display()),
            "name another place with --socket, such as one below $XDG_RUNTIME_DIR",
        )
    };
    match std::fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => clear_away(socket).await?,
        // A link is not followed: what it leads to may be anybody's.
        Ok(_) => {
            return Err(CommandError::with_hint(
                Exit::Other,
                format!("{} is there and is not a socket, so it is left alone", socket.display()),
                "remove it yourself if it is not needed, or name another place with --socket",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("cannot be looked at", error)),
    }
    bind(socket, mode).map_err(|error| failed("cannot be listened at", error))
}

/// A socket that has its mode before anybody can reach it: a mode that is set afterwards comes too late for whoever connects
/// in between. It is made in a directory of ours and then linked to its place, which fails if something is there.
fn bind(socket: &Path, mode: u32) -> io::Result<UnixListener> {
    let name = socket.file_name().ok_or_else(|| io::Error::other("it has no name"))?;
    let private = socket.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&private)?;
    let made = private.join("s");
    let bound = UnixListener::bind(&made).and_then(|listener| {
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(mode))?;
        std::fs::hard_link(&made, socket)?;
        Ok(listener)
    });
    let _ = std::fs::remove_file(&made);
    let _ = std::fs::remove_dir(&private);
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(octal("660"), Ok(0o660));
        for wrong in ["", "8", "1000", "rw"] {
            assert!(octal(wrong).is_err(), "{wrong}");
        }
    }

    /// Whatever is at `--socket` used to be deleted.
    #[tokio::test]
    async fn only_a_socket_that_nobody_listens_at_is_cleared_away() {
        let folder = std::env::temp_dir().join(format!("tenure-agent-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let at = |name: &str| folder.join(name);
        std::fs::write(at("file"), "precious").expect("a file");
        std::fs::create_dir_all(at("directory")).expect("a folder");
        drop(UnixListener::bind(at("dead")).expect("a socket"));
        let live = UnixListener::bind(at("live")).expect("a socket");
        for (link, to) in
            [("to-file", "file"), ("to-dead", "dead"), ("to-live", "live"), ("to-nothing", "nothing")]
        {
            std::os::unix::fs::symlink(at(to), at(link)).expect("a link");
        }
        for name in ["file", "directory", "to-file", "to-dead", "to-live", "to-nothing", "live"] {
            let before = std::fs::symlink_metadata(at(name)).expect("it is there").ino();
            let refused = listen(&at(name), 0o600).await.expect_err(name);
            assert_eq!(refused.exit(), Exit::Other, "{name}");
            let after = std::fs::symlink_metadata(at(name)).map(|found| found.ino()).ok();
            assert_eq!(after, Some(before), "{name} is left alone");
        }
        assert_eq!(std::fs::read_to_string(at("file")).ok().as_deref(), Some("precious"));
        for name in ["dead", "new"] {
            let listener = listen(&at(name), 0o600).await.expect(name);
            UnixStream::connect(at(name)).await.expect("somebody listens");
            drop(listener);
        }
        for mode in [0o600, 0o660, 0o606] {
            let _listener = listen(&at("new"), mode).await.expect("a socket");
            let has = std::fs::metadata(at("new")).expect("it is there").mode() & 0o777;
            assert_eq!(has, mode);
        }
        let left = std::fs::read_dir(&folder).expect("a folder").flatten();
        let hidden = left.filter(|file| file.file_name().to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 0, "nothing of ours is left behind");
        drop(live);
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }
}
