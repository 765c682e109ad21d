//! The connection to a fenced PostgreSQL, and its refusals in the words of the command line.

use std::error::Error;
use std::future::Future;
use std::time::{Duration, Instant};

use tenure_fence::FenceError;
use tokio_postgres::{CancelToken, Client, Config, NoTls};

use tenure_wire::words::span;

use crate::error::CommandError;
use crate::exit::Exit;

/// How long a database may take to take in a request to cancel.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);
/// The least that is waited for an answer: a server's timers count in milliseconds, and zero turns them off.
const LEAST: Duration = Duration::from_millis(10);

/// Which database.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// The PostgreSQL to look after, as a URL or as `host=… user=… dbname=…`. Without TLS: reach a remote one
    /// through a tunnel, or from its own host
    #[arg(long, value_name = "URL", env = "TENURE_FENCE_DATABASE", hide_env_values = true)]
    pub database: Config,
}

impl Args {
    /// Connects; the connection lives as long as this process.
    pub async fn connect(&self, patience: Patience) -> Result<Client, CommandError> {
        connect(&self.database, patience).await
    }
}

/// How much of `--timeout` is left.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    since: Instant,
    timeout: Duration,
}

impl Patience {
    /// All of it.
    pub fn new(timeout: Duration) -> Patience {
        Patience { since: Instant::now(), timeout }
    }

    /// What is left for the next step.
    pub fn left(self) -> Duration {
        self.timeout.saturating_sub(self.since.elapsed()).max(LEAST)
    }

    /// Does a step that may wait in the database. If it does not come to an end in time, the database is asked
    /// to stop: it would otherwise wait on for a caller that is gone.
    pub async fn spend<T>(
        self,
        cancel: CancelToken,
        step: impl Future<Output = Result<T, FenceError>>,
    ) -> Result<T, CommandError> {
        let unanswered = match tokio::time::timeout(self.left(), step).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error @ FenceError::Unknown { .. })) => refused(error),
            Ok(Err(error)) => return Err(refused(error)),
            Err(_) => CommandError::with_hint(
                Exit::Unreachable,
                format!("the database did not answer within {}", span(self.timeout)),
                "a transaction inside may keep it waiting, a prepared one too (pg_prepared_xacts); see --timeout",
            ),
        };
        let _ = tokio::time::timeout(CANCEL_WITHIN, cancel.cancel_query(NoTls)).await;
        Err(unanswered)
    }
}

/// Connects to one database.
pub async fn connect(config: &Config, patience: Patience) -> Result<Client, CommandError> {
    let mut config = config.clone();
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(patience.left());
    }
    config.application_name("tenure fence");
    let (client, connection) = config.connect(NoTls).await.map_err(|error| {
        CommandError::with_hint(
            Exit::Unreachable,
            format!("the database cannot be reached: {}", whole(&error)),
            "name it with --database, such as postgres://postgres@localhost/ledger",
        )
    })?;
    tokio::spawn(async move {
        // The answer itself reports that to whoever waits for it.
        let _ = connection.await;
    });
    Ok(client)
}

/// What a fence said no to.
pub fn refused(error: FenceError) -> CommandError {
    let exit = match &error {
        FenceError::Stale(_) => Exit::Stale,
        FenceError::Unavailable { .. } | FenceError::Unknown { .. } => Exit::Unreachable,
        _ => Exit::Other,
    };
    let missing = whole(&error).contains("tenure_fence");
    match (&error, missing) {
        (FenceError::Refused { .. }, true) if whole(&error).contains("does not exist") => {
            CommandError::with_hint(
                Exit::NotFound,
                "there is no fence in this database",
                "put one there with `tenure fence install TABLE… --resource R --role ROLE`",
            )
        }
        _ => CommandError::said(exit, whole(&error)),
    }
}

/// An error with its causes: the driver says "db error" and keeps what the server said behind it.
fn whole(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let message =
            match deeper.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.as_db_error()) {
                Some(said) => match said.hint() {
                    Some(hint) => format!("{}\n  {hint}", said.message()),
                    None => said.message().to_owned(),
                },
                None => deeper.to_string(),
            };
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = deeper.source();
    }
    text
}
