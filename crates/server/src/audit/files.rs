//! Where the lines go: files of bounded size and number, or stderr. Decides when a file is full and which one is
//! deleted; knows nothing of what a line says.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How large the files may become, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditFileLimits {
    /// Bytes of one file; the line that passes it goes into the next.
    pub file_bytes_max: u64,
    /// Files that are kept; the oldest is deleted when there are more.
    pub files_max: usize,
}

impl Default for AuditFileLimits {
    fn default() -> Self {
        Self { file_bytes_max: 64 << 20, files_max: 8 }
    }
}

/// A place for lines.
pub(crate) trait Sink: Send {
    /// Writes whole lines. They are with the operating system once this returns.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;
}

impl Sink for io::Stderr {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.write_all(lines)?;
        self.flush()
    }
}

/// Files in a folder: `audit-000001.jsonl`, `audit-000002.jsonl`, and so on.
#[derive(Debug)]
pub(crate) struct AuditFiles {
    folder: PathBuf,
    limits: AuditFileLimits,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    file: File,
    bytes: u64,
}

impl AuditFiles {
    /// Opens the newest file, or makes the first one.
    pub fn open(folder: &Path, limits: AuditFileLimits) -> io::Result<AuditFiles> {
        let mut files = AuditFiles { folder: folder.to_owned(), limits, open: None };
        files.append(&[])?;
        Ok(files)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("audit-{number:06}.jsonl"))
    }

    /// The numbers of the files that are there, in order.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_prefix("audit-")?.strip_suffix(".jsonl"));
            numbers.extend(digits.and_then(|digits| digits.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn reopen(&mut self) -> io::Result<Open> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let newest = self.numbers()?.last().copied().unwrap_or(1);
        let open = self.open_file(newest)?;
        Ok(if open.bytes >= self.limits.file_bytes_max { self.open_file(newest + 1)? } else { open })
    }

    fn open_file(&self, number: u64) -> io::Result<Open> {
        let mut file =
            OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(self.path(number))?;
        let mut bytes = file.metadata()?.len();
        if bytes > 0 {
            // A line that a crash cut off must not run into the next one.
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok(Open { number, file, bytes })
    }

    fn delete_oldest(&self) -> io::Result<()> {
        let numbers = self.numbers()?;
        let surplus = numbers.len().saturating_sub(self.limits.files_max.max(1));
        numbers[..surplus].iter().try_for_each(|number| fs::remove_file(self.path(*number)))
    }
}

impl Sink for AuditFiles {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        // After a failure nothing is known about the file: it is opened anew.
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.reopen()?,
        };
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if open.bytes > 0 && open.bytes + line.len() as u64 > self.limits.file_bytes_max {
                open = self.open_file(open.number + 1)?;
                self.delete_oldest()?;
            }
            open.file.write_all(line)?;
            open.bytes += line.len() as u64;
        }
        self.open = Some(open);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LIMITS: AuditFileLimits = AuditFileLimits { file_bytes_max: 10, files_max: 2 };

    fn content(folder: &Path) -> Vec<(String, String)> {
        let mut all: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        all.sort();
        all
    }

    fn named(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn full_files_follow_each_other_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("deep/audit");
        let mut files = AuditFiles::open(&folder, LIMITS).unwrap();
        files.append(b"1234\n5678\nabcd\n").unwrap();
        let two = [("audit-000001.jsonl", "1234\n5678\n"), ("audit-000002.jsonl", "abcd\n")];
        assert_eq!(content(&folder), named(&two));
        // A line is never split, even one that is larger than a file may be.
        files.append(b"a line that is too long\nx\n").unwrap();
        let next = [("audit-000003.jsonl", "a line that is too long\n"), ("audit-000004.jsonl", "x\n")];
        assert_eq!(content(&folder), named(&next));
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let mode = fs::metadata(folder.join("audit-000004.jsonl")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_restart_goes_on_where_the_last_run_ended() {
        let folder = tempfile::tempdir().unwrap();
        AuditFiles::open(folder.path(), LIMITS).unwrap().append(b"ab\nhalf a").unwrap();
        let mut files = AuditFiles::open(folder.path(), LIMITS).unwrap();
        files.append(b"c\n").unwrap();
        let both = [("audit-000001.jsonl", "ab\nhalf a\n"), ("audit-000002.jsonl", "c\n")];
        assert_eq!(content(folder.path()), named(&both));
        fs::write(folder.path().join("notes.txt"), "not ours").unwrap();
        let mut files = AuditFiles::open(folder.path(), LIMITS).unwrap();
        files.append(b"012345678\n").unwrap();
        let names: Vec<_> = content(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["audit-000002.jsonl", "audit-000003.jsonl", "notes.txt"]);
    }

    /// After a failure it is tried again, and goes on once the cause is gone.
    #[test]
    fn a_folder_that_went_away_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut files = AuditFiles::open(&path, LIMITS).unwrap();
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "in the way").unwrap();
        files.append(b"gone with the deleted file\n").unwrap();
        files.append(b"the next file cannot be made\n").unwrap_err();
        files.append(b"nor now\n").unwrap_err();
        fs::remove_file(&path).unwrap();
        files.append(b"back\n").unwrap();
        assert_eq!(content(&path), named(&[("audit-000001.jsonl", "back\n")]));
    }
}
