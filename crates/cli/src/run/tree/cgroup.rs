//! A tree in a cgroup v2 of its own: no process leaves it by forking, and one write kills all of them.
//!
//! It is made below the cgroup that this process is in, which is where a user may make one who may make any.
//! A process of the tree that is allowed to can move itself out; whoever must be kept from that needs a
//! container.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// One cgroup.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// A new one, tried out.
    pub fn make() -> io::Result<Cgroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let parent = folder(&mounts, &own).ok_or_else(|| io::Error::other("cgroup v2 is not mounted"))?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroup = Cgroup(parent.join(format!("tenure-run-{}-{number}", std::process::id())));
        fs::create_dir(&cgroup.0)?;
        let allowed = match cgroup.0.join("cgroup.kill").is_file() {
            // A kernel before 5.14 cannot kill a cgroup in one step, which is what it is wanted for.
            false => Err(io::Error::other("this kernel cannot kill a cgroup")),
            true => super::try_in_process("cgroup", &cgroup.0),
        };
        if allowed.is_err() {
            cgroup.remove();
        }
        allowed.map(|()| cgroup)
    }

    /// One that exists.
    pub fn at(path: PathBuf) -> Cgroup {
        Cgroup(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves this process into it.
    pub fn join(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), "0")
    }

    /// The processes in it and below.
    pub fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        let mut open = vec![self.0.clone()];
        while let Some(folder) = open.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            members.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            open.extend(folders_in(&folder));
        }
        members
    }

    /// Kills everything in it and below, also what is being forked at this moment.
    pub fn kill(&self) {
        // It may have been removed already, which it cannot be while anything is in it.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Whether nothing alive is in it or below.
    pub fn is_empty(&self) -> bool {
        match fs::read_to_string(self.0.join("cgroup.events")) {
            Ok(events) => events.lines().any(|line| line == "populated 0"),
            Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE),
        }
    }

    /// Removes it, with what the tree has made below it.
    pub fn remove(&self) {
        fn remove(folder: &Path) {
            folders_in(folder).iter().for_each(|folder| remove(folder));
            // What cannot be removed is empty and harms nobody.
            let _ = fs::remove_dir(folder);
        }
        remove(&self.0);
    }
}

/// What reading a file of a cgroup answers that is being removed (`ENODEV`).
const NO_DEVICE: i32 = 19;

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The folder of this process's own cgroup: where the hierarchy is mounted, and where in it this process is.
fn folder(mounts: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        if !kind.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = place.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // In a container a part of the hierarchy is mounted; what is outside of it cannot be reached.
        let below = own.strip_prefix(if root == "/" { "" } else { root })?;
        let point = Path::new(point);
        Some(point.join(below.trim_start_matches('/'))).filter(|_| !below.contains("/.."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "30 22 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                          31 22 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const CONTAINER: &str = "31 22 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";

    #[test]
    fn ones_own_cgroup_is_found() {
        let found = |mounts, own| folder(mounts, own).map(|path| path.display().to_string());
        let user = "0::/user.slice/user-1000.slice\n";
        assert_eq!(found(UNIFIED, user).as_deref(), Some("/sys/fs/cgroup/user.slice/user-1000.slice"));
        assert_eq!(found(HYBRID, "3:cpu:/x\n0::/\n").as_deref(), Some("/sys/fs/cgroup/unified/"));
        assert_eq!(found(CONTAINER, "0::/docker/abc/job\n").as_deref(), Some("/sys/fs/cgroup/job"));
        assert_eq!(found(CONTAINER, "0::/elsewhere\n"), None);
        assert_eq!(found(UNIFIED, "0::/../outside\n"), None);
        assert_eq!(found("", user), None);
        assert_eq!(found(UNIFIED, "1:cpu:/\n"), None);
    }
}
