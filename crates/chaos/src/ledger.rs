//! The storage: a real PostgreSQL behind the shipped fence, and what its rows contain at the end.
//!
//! Holders reach it over a Unix socket, whatever happens to the network: fences exist for holders that are
//! cut off from the lease store and can still write. The result is judged from the rows, in the order in
//! which the database committed them, not from what clients reported.

#[path = "../../fence/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_checker::FenceStep;
use tenure_core::{Scope, Token};
use tenure_fence::postgres::{Postgres, PostgresFence};
use tenure_fence::{Authority, FenceError, Takeover, Unchecked};
use tokio_postgres::{Client, NoTls};

use crate::time::calendar_ahead;

/// The fence's name, as the store shows it.
pub const FENCE: &str = "postgres:ledger";
/// How long a write without a permit may take.
const BARE_WITHIN: Duration = Duration::from_millis(800);

const TABLES: &str = "
    CREATE TABLE entries (id bigint PRIMARY KEY, scope text NOT NULL, token bigint NOT NULL, n bigint NOT NULL);
    CREATE INDEX ON entries (scope, n);
    CREATE TABLE cuts (scope text NOT NULL, token bigint NOT NULL, n bigint NOT NULL);";
const LAST: &str = "SELECT coalesce(max(n), 0) FROM entries WHERE scope = $1";
const WRITE: &str = "INSERT INTO entries (id, scope, token, n) VALUES ($1, $2, $3, $4)";
/// What a new holder finds right after its barrier: an older token may add nothing behind this.
const CUT: &str = "INSERT INTO cuts (scope, token, n) SELECT $1::text, $2::bigint, coalesce(max(n), 0) FROM entries WHERE scope = $1::text";
/// Entries that an older token added behind what a newer one had found.
const BEHIND: &str = "SELECT scope, token, n FROM entries WHERE EXISTS (SELECT 1 FROM cuts
    WHERE cuts.scope = entries.scope AND cuts.token > entries.token AND cuts.n < entries.n)";
/// Every entry in the order of its commit, with the database's own moment of it.
const BY_COMMIT: &str =
    "SELECT id, scope, token, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
    FROM entries ORDER BY 4, token";

/// The database server of a run; it ends with it.
pub struct Database {
    server: support::Server,
}

/// What the rows say.
pub struct Judged {
    /// Every entry, in the order of the commits.
    pub steps: Vec<FenceStep>,
    /// What cannot have been.
    pub wrong: Vec<String>,
}

impl Database {
    /// Starts one, if PostgreSQL is installed.
    pub fn start() -> Result<Database, String> {
        let mut server =
            support::postgres().ok_or("chaos needs PostgreSQL: `cargo xtask setup` installs it")?;
        block_on(async {
            let client = connect(&place(&server)).await?;
            Postgres::new().install(&client).await.map_err(|error| error.to_string())?;
            client.batch_execute(TABLES).await.map_err(|error| error.to_string())?;
            // When each transaction was committed: what the rows are judged by. Takes a restart.
            let on = client.batch_execute("ALTER SYSTEM SET track_commit_timestamp = on").await;
            on.map_err(|error| error.to_string())
        })?;
        server.crash_and_restart();
        // The tables were made before their moments were kept.
        Ok(Database { server })
    }

    /// Where holders find it.
    pub fn place(&self) -> String {
        place(&self.server)
    }

    /// Judges the rows. `acknowledged`: what was acknowledged to writers.
    pub fn judge(&self, acknowledged: &[u64]) -> Result<Judged, String> {
        block_on(async {
            let described = |error: tokio_postgres::Error| format!("the ledger cannot be read: {error}");
            let client = connect(&self.place()).await?;
            let mut wrong = Vec::new();
            for row in client.query(BEHIND, &[]).await.map_err(described)? {
                let (scope, token, n): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
                wrong.push(format!("{scope}: token {token} wrote entry {n} behind a newer token's barrier"));
            }
            let ahead = calendar_ahead();
            let (mut steps, mut kept) = (Vec::new(), BTreeMap::new());
            for row in client.query(BY_COMMIT, &[]).await.map_err(described)? {
                let (id, scope, token, at): (i64, String, i64, i64) =
                    (row.get(0), row.get(1), row.get(2), row.get(3));
                let at = (at as u64).saturating_sub(ahead);
                kept.insert(id as u64, token);
                steps.push(FenceStep { scope: scope.into(), token: token as u64, at, accepted: true });
            }
            let lost = acknowledged.iter().filter(|id| !kept.contains_key(id)).count();
            if lost > 0 {
                wrong.push(format!("{lost} acknowledged entries are not there"));
            }
            Ok(Judged { steps, wrong })
        })
    }
}

fn place(server: &support::Server) -> String {
    format!("host={} port={} user=postgres dbname=postgres", server.dir.display(), server.port)
}

fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("no runtime: {error}"))?.block_on(work)
}

async fn connect(place: &str) -> Result<Client, String> {
    let (client, connection) =
        tokio_postgres::connect(place, NoTls).await.map_err(|error| format!("no ledger: {error}"))?;
    // Ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

/// One writer's way into the ledger.
pub struct Ledger {
    place: String,
    client: Client,
    fence: PostgresFence,
}

impl Ledger {
    /// Two connections: one for work, one for barriers, which must not wait behind it.
    pub async fn open(place: &str) -> Result<Ledger, String> {
        let fence = Postgres::new().over(connect(place).await?);
        Ok(Ledger { place: place.to_owned(), client: connect(place).await?, fence })
    }

    /// The fence, for a lease that takes over.
    pub fn fence(&self) -> &PostgresFence {
        &self.fence
    }

    /// Opens it again if the database has hung up on a transaction that took too long.
    async fn mended(&mut self) -> Result<(), String> {
        if self.client.is_closed() {
            *self = Ledger::open(&self.place).await?;
        }
        Ok(())
    }

    /// The barrier of a writer that has a token and no lease in its hands: a command under `tenure run`.
    pub async fn take_over(&mut self, scope: &Scope, token: Token) -> Result<(), FenceError> {
        let unavailable = |why: String| FenceError::Unavailable { cause: why.into() };
        self.mended().await.map_err(unavailable)?;
        let holder = "run".parse().map_err(|_| unavailable("a holder has a name".into()))?;
        let takeover = Takeover::unchecked(scope.clone(), token, holder);
        Postgres::new().barrier(&self.client, &takeover).await.map(drop)
    }

    /// Writes down what a new holder finds.
    pub async fn cut<A: Authority>(&mut self, authority: &A) -> Result<(), FenceError> {
        let unavailable = |why: String| FenceError::Unavailable { cause: why.into() };
        self.mended().await.map_err(unavailable)?;
        let (scope, token) = (authority.scope().to_string(), authority.token().get() as i64);
        let guarded = Postgres::new().begin(&mut self.client, authority).await?;
        let failed = |error: tokio_postgres::Error| FenceError::Unavailable { cause: Box::new(error) };
        guarded.execute(CUT, &[&scope, &token]).await.map_err(failed)?;
        guarded.commit().await
    }

    /// Adds an entry: reads what is there, then writes the next, in one guarded transaction.
    pub async fn write<A: Authority>(&mut self, authority: &A, id: u64) -> Result<(), FenceError> {
        let unavailable = |why: String| FenceError::Unavailable { cause: why.into() };
        self.mended().await.map_err(unavailable)?;
        let (scope, token) = (authority.scope().to_string(), authority.token().get() as i64);
        let guarded = Postgres::new().begin(&mut self.client, authority).await?;
        let failed = |error: tokio_postgres::Error| FenceError::Unavailable { cause: Box::new(error) };
        let last: i64 = guarded.query_one(LAST, &[&scope]).await.map_err(failed)?.get(0);
        guarded.execute(WRITE, &[&(id as i64), &scope, &token, &(last + 1)]).await.map_err(failed)?;
        guarded.commit().await
    }
}

/// A token without a permit: what a command under `run` has, and what a zombie that forgot to ask would use.
pub fn bare(scope: &Scope, token: Token) -> Unchecked {
    Unchecked::unchecked(scope.clone(), token, Some(BARE_WITHIN))
}
