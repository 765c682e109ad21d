//! Files: token-named generations in a folder, with the standard library alone. Nothing is ever
//! overwritten, so a zombie's file can never win; there is no lock, so a frozen one blocks nobody.
//!
//! ```ignore
//! let files = Files::open("/var/lib/app")?;
//! files.publish(&permit, |_previous, next| std::fs::write(next.join("report.csv"), &report))?;
//! ```
//!
//! A *generation* is a folder with everything that was true at one point. A writer fills a folder that
//! nobody looks at and renames it to `generation.<token>.<seq>`; a rename onto a folder that is not empty
//! fails, so every name is taken once. Readers take the newest: [`Files::current`].
//!
//! How the cut is made without a lock. A barrier for token T puts up the file `fence.T`, *then* looks which
//! generation is the newest of those that count below it, and puts that up as `base.T`. Both are made by a
//! hard link, which fails if the name is taken: the first `base.T` decides, whoever wrote it. So from the
//! highest fence a chain of bases leads down through all the generations that count, and no further.
//!
//! A writer renames its generation into place and then looks for fences above its own token:
//! - there is none: any later barrier puts up its fence after this look began, hence after the rename, and
//!   so finds the generation. Accepted.
//! - there are some: the chain from the highest says whether this generation is on it. Where a base on the
//!   way is not decided yet, the writer decides it, as the barrier would. On the chain: accepted; else
//!   stale, and no reader will ever look at it.
//!
//! A directory listing is not a snapshot: it certainly shows what was there when it began, and may or may
//! not show what came during it. So a base is decided by a listing that *began* after its fence was seen,
//! and the highest fence counts only when a second listing, begun after the first ended, shows none higher.
//!
//! So what was accepted is on the chain, and what was refused is not. Local file systems only: a network
//! file system that caches listings can hide a fence.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};

use crate::budget;
use crate::rule::{Standing, judge};
use crate::{Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

/// A folder of guarded generations, one sub-folder per scope.
#[derive(Clone)]
pub struct Files {
    root: PathBuf,
    clock: Arc<dyn Clock>,
}

/// Which generation: ordered by token, then by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GenerationId {
    token: Token,
    seq: u64,
}

/// One look at a scope's folder.
struct Listing {
    fences: Vec<Token>,
    generations: Vec<GenerationId>,
}

/// The file inside a generation that keeps the cursor. It is always there, so that no generation is empty:
/// a rename would replace an empty folder.
const CURSOR: &str = ".tenure-cursor";

impl Files {
    /// Guards the folder, which is made if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> Result<Files, FenceError> {
        Files::with_clock(root, Arc::new(SystemClock))
    }

    /// The same with another clock.
    pub fn with_clock(root: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Result<Files, FenceError> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(FenceError::unavailable)?;
        Ok(Files { root, clock })
    }

    /// Installs the takeover's token; see [`Fence::barrier`].
    pub fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        budget::of_takeover(takeover, &*self.clock)?;
        let folder = self.folder(takeover.scope()).map_err(FenceError::unavailable)?;
        let before = list(&folder).map_err(FenceError::unavailable)?.highest();
        judge(takeover.scope(), takeover.token(), before)?;
        let base = self
            .install(&folder, takeover.token(), Some(takeover.holder()))
            .map_err(|error| FenceError::unknown(FindOut::Repeat, error))?;
        // Two barriers may have passed the look above together; the higher one has the word.
        let after = list(&folder).map_err(|error| FenceError::unknown(FindOut::Repeat, error))?;
        judge(takeover.scope(), takeover.token(), after.highest())?;
        let newest = after.newest_of(takeover.token()).or(base);
        let cursor = match newest {
            None => None,
            Some(id) => read_cursor(&folder, id).map_err(FenceError::unavailable)?,
        };
        Ok(Barrier { predecessor: before, seq: newest.map_or(0, |id| id.seq), cursor })
    }

    /// Publishes the next generation: `fill` is given the current one, if any, and the folder to fill, and is
    /// run again if another writer of the same holder was faster. The cursor stays as it was.
    pub fn publish<A: Authority>(
        &self,
        authority: &A,
        fill: impl FnMut(Option<&Path>, &Path) -> io::Result<()>,
    ) -> Result<(), FenceError> {
        self.publish_with(authority, None, fill)
    }

    /// The same, and moves the cursor in the same step.
    pub fn publish_and_advance<A: Authority>(
        &self,
        authority: &A,
        cursor: Cursor,
        fill: impl FnMut(Option<&Path>, &Path) -> io::Result<()>,
    ) -> Result<(), FenceError> {
        self.publish_with(authority, Some(cursor), fill)
    }

    fn publish_with<A: Authority>(
        &self,
        authority: &A,
        cursor: Option<Cursor>,
        mut fill: impl FnMut(Option<&Path>, &Path) -> io::Result<()>,
    ) -> Result<(), FenceError> {
        budget::of(authority, &*self.clock)?;
        let (scope, token) = (authority.scope(), authority.token());
        let folder = self.folder(scope).map_err(FenceError::unavailable)?;
        loop {
            let look = list(&folder).map_err(FenceError::unavailable)?;
            if judge(scope, token, look.highest())? == Standing::Raises {
                self.install(&folder, token, None).map_err(FenceError::unavailable)?;
                continue;
            }
            let newest = match look.newest_of(token) {
                Some(own) => Some(own),
                None => self.base(&folder, token).map_err(FenceError::unavailable)?,
            };
            let stage = Stage::new(&folder).map_err(FenceError::unavailable)?;
            let previous = newest.map(|id| folder.join(id.name()));
            let cursor = match (&cursor, newest) {
                (Some(cursor), _) => Some(cursor.clone()),
                (None, Some(id)) => read_cursor(&folder, id).map_err(FenceError::unavailable)?,
                (None, None) => None,
            };
            write_cursor(&stage.0, cursor.as_ref()).map_err(FenceError::unavailable)?;
            fill(previous.as_deref(), &stage.0).map_err(FenceError::refused)?;
            sync_tree(&stage.0).map_err(FenceError::unavailable)?;
            // The clock is asked again: filling may have taken long.
            budget::of(authority, &*self.clock)?;
            let next = GenerationId { token, seq: newest.map_or(0, |id| id.seq) + 1 };
            match fs::rename(&stage.0, folder.join(next.name())) {
                Ok(()) => {}
                // Another writer of this holder has the number; look again and fill again.
                Err(error) if taken(&error) => continue,
                Err(error) => return Err(FenceError::unavailable(error)),
            }
            return self.settle(scope, &folder, next);
        }
    }

    /// After the rename: did it come in under every newer fence? See the head of this file.
    fn settle(&self, scope: &Scope, folder: &Path, own: GenerationId) -> Result<(), FenceError> {
        let unknown = |error: io::Error| FenceError::unknown(FindOut::ReadBack, error);
        sync(folder).map_err(unknown)?;
        let highest = self.highest(folder).map_err(unknown)?;
        let mut fence = highest;
        while let Some(above) = fence.filter(|fence| *fence > own.token) {
            match self.base(folder, above).map_err(unknown)? {
                Some(base) if base.token == own.token && base.seq >= own.seq => return Ok(()),
                Some(base) if base.token > own.token => fence = Some(base.token),
                _ => return judge(scope, own.token, highest).map(drop), // the chain has passed it by
            }
        }
        Ok(())
    }

    /// The highest fence, such that every higher one goes up after this call began.
    fn highest(&self, folder: &Path) -> io::Result<Option<Token>> {
        let mut highest = list(folder)?.highest();
        loop {
            let again = list(folder)?.highest();
            if again == highest {
                return Ok(highest);
            }
            highest = again;
        }
    }

    /// The newest published generation: a folder that nobody will change. `None` before the first one.
    pub fn current(&self, scope: &Scope) -> Result<Option<PathBuf>, FenceError> {
        let folder = self.folder(scope).map_err(FenceError::unavailable)?;
        Ok(self.newest(&folder).map_err(FenceError::unavailable)?.map(|id| folder.join(id.name())))
    }

    fn newest(&self, folder: &Path) -> io::Result<Option<GenerationId>> {
        let look = list(folder)?;
        let Some(highest) = look.highest() else { return Ok(None) };
        match look.newest_of(highest) {
            Some(own) => Ok(Some(own)),
            None => self.base(folder, highest),
        }
    }

    /// What the fence remembers of a scope.
    pub fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        let folder = self.folder(scope).map_err(FenceError::unavailable)?;
        self.read_mark(&folder).map_err(FenceError::unavailable)
    }

    fn read_mark(&self, folder: &Path) -> io::Result<Option<FenceMark>> {
        let Some(token) = list(folder)?.highest() else { return Ok(None) };
        let holder = fs::read_to_string(folder.join(named("holder", token)))
            .or_else(|_| fs::read_to_string(folder.join(named("fence", token))))?;
        let newest = self.newest(folder)?;
        let cursor = newest.map(|id| read_cursor(folder, id)).transpose()?.flatten();
        Ok(Some(FenceMark { token, holder: holder.parse().ok(), seq: newest.map_or(0, |id| id.seq), cursor }))
    }

    /// Removes all but the newest `keep` generations of those that count. Fences and bases stay: they are
    /// small, and a zombie that wakes after years must still find them. What a crash left half-made
    /// (`stage.*`, `draft.*`) may be removed by hand while no writer runs.
    pub fn clean(&self, scope: &Scope, keep: usize) -> Result<(), FenceError> {
        let folder = self.folder(scope).map_err(FenceError::unavailable)?;
        self.clean_folder(&folder, keep).map_err(FenceError::unavailable)
    }

    fn clean_folder(&self, folder: &Path, keep: usize) -> io::Result<()> {
        let look = list(folder)?;
        let Some(highest) = look.highest() else { return Ok(()) };
        let base = self.base(folder, highest)?;
        let mut live: Vec<GenerationId> = look
            .generations
            .iter()
            .copied()
            .filter(|id| id.token == highest || base.is_some_and(|base| *id <= base))
            .collect();
        live.sort_unstable();
        let kept = &live[live.len().saturating_sub(keep.max(1))..];
        for id in look.generations.iter().filter(|id| !kept.contains(id)) {
            // A writer may have come since: what it published is newer than all of these.
            fs::remove_dir_all(folder.join(id.name()))?;
        }
        Ok(())
    }

    /// Lowers a poisoned mark, audited; see [`Fence::repair`]. Removes the fences above `to` and what was
    /// published under them.
    pub fn repair(
        &self,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let folder = self.folder(scope).map_err(FenceError::unavailable)?;
        let look = list(&folder).map_err(FenceError::unavailable)?;
        let Some(was) = look.highest() else {
            return Err(FenceError::refused(format!("no token was ever seen for {scope}")));
        };
        let repair = || -> io::Result<()> {
            let line = format!("{} {was} -> {to} by {by}: {reason}\n", self.clock.wall().as_unix_millis());
            let mut audit = OpenOptions::new().create(true).append(true).open(folder.join("audit"))?;
            audit.write_all(line.as_bytes())?;
            audit.sync_all()?;
            self.install(&folder, to, Some(by))?;
            for id in look.generations.iter().filter(|id| id.token > to) {
                fs::remove_dir_all(folder.join(id.name()))?;
            }
            for fence in look.fences.iter().filter(|fence| **fence > to) {
                for kind in ["base", "holder", "fence"] {
                    match fs::remove_file(folder.join(named(kind, *fence))) {
                        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
            }
            sync(&folder)
        };
        repair().map_err(|error| FenceError::unknown(FindOut::Repeat, error))?;
        self.mark(scope)?.ok_or_else(|| FenceError::refused("the mark has vanished"))
    }

    /// Puts up the fence and decides its base; both may be there already.
    fn install(
        &self,
        folder: &Path,
        token: Token,
        holder: Option<&HolderName>,
    ) -> io::Result<Option<GenerationId>> {
        let holder = holder.map_or("", HolderName::as_str);
        create(folder, &named("fence", token), holder)?;
        if !holder.is_empty() {
            create(folder, &named("holder", token), holder)?;
        }
        self.base(folder, token)
    }

    /// The newest generation that counts below a fence that is up, decided once and for all by whoever asks
    /// first.
    fn base(&self, folder: &Path, fence: Token) -> io::Result<Option<GenerationId>> {
        let name = named("base", fence);
        loop {
            match fs::read_to_string(folder.join(&name)) {
                Ok(text) => {
                    return parse_base(&text).ok_or_else(|| io::Error::other(format!("{name} is damaged")));
                }
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Err(_) => {}
            }
            let look = list(folder)?; // begun after the fence was seen: see the head of this file
            let newest = match look.fences.iter().copied().filter(|other| *other < fence).max() {
                None => None,
                Some(below) => match look.newest_of(below) {
                    Some(own) => Some(own),
                    None => self.base(folder, below)?,
                },
            };
            let text = newest.map_or("none\n".to_owned(), |id| format!("{} {}\n", id.token, id.seq));
            create(folder, &name, &text)?;
        }
    }

    fn folder(&self, scope: &Scope) -> io::Result<PathBuf> {
        let folder = self.root.join(folder_name(scope));
        if !folder.is_dir() {
            fs::create_dir_all(&folder)?;
            sync_upwards(&self.root, &folder)?;
        }
        Ok(folder)
    }
}

impl Fence for Files {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(async move { Files::barrier(self, takeover) })
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(async move { Files::mark(self, scope) })
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(async move { Files::repair(self, scope, to, by, reason) })
    }
}

impl GenerationId {
    fn name(self) -> String {
        format!("generation.{:016}.{:016}", self.token.get(), self.seq)
    }
}

impl Listing {
    fn highest(&self) -> Option<Token> {
        self.fences.iter().copied().max()
    }

    fn newest_of(&self, token: Token) -> Option<GenerationId> {
        self.generations.iter().copied().filter(|id| id.token == token).max()
    }
}

/// A folder being filled; removed unless it was renamed away.
struct Stage(PathBuf);

impl Stage {
    fn new(folder: &Path) -> io::Result<Stage> {
        loop {
            let path = folder.join(format!("stage.{}", unique()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Stage(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // gone already, if it was published
    }
}

/// Different for every call on this host; a clash with another host's only costs another attempt.
fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn named(kind: &str, token: Token) -> String {
    format!("{kind}.{:016}", token.get())
}

fn list(folder: &Path) -> io::Result<Listing> {
    let mut listing = Listing { fences: Vec::new(), generations: Vec::new() };
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let mut parts = name.split('.');
        let kind = parts.next();
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        match kind {
            Some("fence") => listing.fences.extend(number().and_then(|n| Token::try_from(n).ok())),
            Some("generation") => {
                if let (Some(token), Some(seq)) = (number().and_then(|n| Token::try_from(n).ok()), number()) {
                    listing.generations.push(GenerationId { token, seq });
                }
            }
            _ => {}
        }
    }
    Ok(listing)
}

/// Makes a file with its whole content at once; harmless if the name is taken.
fn create(folder: &Path, name: &str, content: &str) -> io::Result<()> {
    let target = folder.join(name);
    if target.exists() {
        return sync(folder); // somebody made it; make sure that it stays
    }
    let draft = folder.join(format!("draft.{}", unique()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, &target);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync(folder),
    }
}

fn parse_base(text: &str) -> Option<Option<GenerationId>> {
    let text = text.strip_suffix('\n')?;
    if text == "none" {
        return Some(None);
    }
    let (token, seq) = text.split_once(' ')?;
    Some(Some(GenerationId {
        token: Token::try_from(token.parse::<u64>().ok()?).ok()?,
        seq: seq.parse().ok()?,
    }))
}

fn write_cursor(generation: &Path, cursor: Option<&Cursor>) -> io::Result<()> {
    // One byte ahead tells "no cursor" from an empty one.
    let mut bytes = vec![if cursor.is_some() { b'+' } else { b'-' }];
    bytes.extend_from_slice(cursor.map_or(&[], Cursor::as_bytes));
    fs::write(generation.join(CURSOR), bytes)
}

fn read_cursor(folder: &Path, id: GenerationId) -> io::Result<Option<Cursor>> {
    let bytes = fs::read(folder.join(id.name()).join(CURSOR))?;
    Ok(match bytes.split_first() {
        Some((b'+', cursor)) => Some(Cursor::from(cursor)),
        _ => None,
    })
}

fn taken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty)
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => sync_tree(&entry.path())?,
            kind if kind.is_file() => sync(&entry.path())?,
            _ => {}
        }
    }
    sync(folder)
}

fn sync_upwards(root: &Path, folder: &Path) -> io::Result<()> {
    for ancestor in folder.ancestors().skip(1).take_while(|ancestor| ancestor.starts_with(root)) {
        sync(ancestor)?;
    }
    Ok(())
}

/// A path that no other scope has: bytes outside a safe set are written as `%xx`, and long names are cut
/// into folders, each but the last ending in `+` so that none is the beginning of another.
fn folder_name(scope: &Scope) -> PathBuf {
    let mut safe = String::new();
    for byte in scope.to_string().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => safe.push(char::from(byte)),
            _ => safe.push_str(&format!("%{byte:02x}")),
        }
    }
    let mut path = PathBuf::new();
    let pieces: Vec<&[u8]> = safe.as_bytes().chunks(200).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let end = if number + 1 == pieces.len() { "" } else { "+" };
        path.push(format!("{}{end}", String::from_utf8_lossy(piece)));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The writer's generation was in when the next two holders came: it was built upon, and the writer must
    /// learn so, although the newest fence does not lead to it directly.
    #[test]
    fn a_writer_that_two_holders_have_built_upon_learns_that_it_landed() {
        let folder = std::env::temp_dir().join(format!("tenure-files-chain-{}", std::process::id()));
        let files = Files::open(&folder).expect("a folder");
        let scope: Scope = "chain".parse().expect("a scope");
        let token = |number: u64| Token::try_from(number).expect("a token");
        let barrier = |number: u64| {
            let takeover =
                Takeover::unchecked(scope.clone(), token(number), "holder".parse().expect("a name"));
            files.barrier(&takeover).expect("a barrier");
        };
        let publish = |number: u64| {
            let authority = crate::Unchecked::unchecked(scope.clone(), token(number), None);
            files.publish(&authority, |_, next| fs::write(next.join("a"), "a")).expect("published");
        };
        barrier(1);
        publish(1);
        barrier(2);
        publish(2);
        barrier(3);
        let (own, at) = (GenerationId { token: token(1), seq: 1 }, files.folder(&scope).expect("its folder"));
        let (landed, passed_by) = (files.settle(&scope, &at, own), GenerationId { seq: 2, ..own });
        let late = files.settle(&scope, &at, passed_by);
        fs::remove_dir_all(&folder).expect("removed");
        landed.expect("it is in what the second holder built upon");
        assert!(matches!(late, Err(FenceError::Stale(_))), "{late:?}");
    }

    #[test]
    fn every_scope_has_a_folder_of_its_own() {
        let long = "x".repeat(400);
        let names = ["a/b", "a%2fb", "a#1", "a", &long, &long[..399], &format!("{long}y"), &long[..200]];
        let mut folders: Vec<PathBuf> =
            names.iter().map(|name| folder_name(&name.parse().expect("a scope"))).collect();
        folders.sort();
        folders.dedup();
        assert_eq!(folders.len(), names.len());
        assert!(folders.iter().all(|path| path.components().all(|part| part.as_os_str().len() <= 255)));
    }
}
