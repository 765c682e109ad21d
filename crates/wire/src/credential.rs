//! A credential: how its secret is written in a header, and how it is kept in a file.
//!
//! A [`Bearer`] is `tenure_ID_SECRET`: the public id, by which the state knows it, and 256 secret bits, of which the
//! state knows a hash. A [`CredentialFile`] has it together with what its owner needs to use it: where the cluster is,
//! and which root vouches for it. This file decides the two texts and shows a secret to nobody who does not ask.
//!
//! ```text
//! tenure-credential: 1
//! name: pay-worker
//! endpoints: 10.0.0.1:7400,10.0.0.2:7400
//! expires: 2027-02-16T09:00:00.000Z
//! credential: tenure_00010203ffeeddcc_…
//!
//! -----BEGIN CERTIFICATE-----
//! …
//! -----END CERTIFICATE-----
//! ```

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tenure_core::CredentialId;
use zeroize::Zeroizing;

use crate::words::hex;

/// How every bearer begins, so that people and scanners know one when they see it.
const PREFIX: &str = "tenure_";
/// Bytes of a file. Two root certificates are some two kilobytes.
pub const CREDENTIAL_FILE_BYTES_MAX: usize = 64 << 10;
/// Root certificates in one file: the present one, and the next while the root is being replaced.
const ROOTS_MAX: usize = 8;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// A credential as it is presented: its id and its secret. It prints the id only.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer {
    id: CredentialId,
    secret: Zeroizing<[u8; 32]>,
}

impl Bearer {
    /// The credential of this id and these 256 random bits.
    pub fn new(id: CredentialId, secret: [u8; 32]) -> Bearer {
        Bearer { id, secret: Zeroizing::new(secret) }
    }

    /// The public half.
    pub fn id(&self) -> CredentialId {
        self.id
    }

    /// The secret half, for whoever hashes it.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// The whole text, secret and all: for a header, or for a file.
    pub fn reveal(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(hex(&self.secret[..]));
        Zeroizing::new(format!("{PREFIX}{}_{}", self.id, *secret))
    }

    /// Whether a text means to be one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bearer({PREFIX}{}_…)", self.id)
    }
}

/// A text that is no credential. It says nothing about the text, which may be most of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no credential: one is `tenure_`, 16 hexadecimal digits, `_` and 64 more")]
pub struct InvalidBearer;

impl FromStr for Bearer {
    type Err = InvalidBearer;

    fn from_str(text: &str) -> Result<Bearer, InvalidBearer> {
        let (id, secret) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).ok_or(InvalidBearer)?;
        let id = id.parse().map_err(|_| InvalidBearer)?;
        let mut bits = Zeroizing::new([0; 32]);
        if secret.len() != 64 {
            return Err(InvalidBearer);
        }
        for (byte, pair) in bits.iter_mut().zip(secret.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Bearer { id, secret: bits })
    }
}

fn digit(byte: u8) -> Result<u8, InvalidBearer> {
    match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(InvalidBearer),
    }
}

/// What `tenure auth new` writes, and what a client is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFile {
    /// Whose it is, for people.
    pub name: String,
    /// Where the cluster is: `host:port`, as many as are known.
    pub endpoints: Vec<String>,
    /// When it expires, for people: the cluster decides.
    pub expires: Option<String>,
    /// The credential.
    pub bearer: Bearer,
    /// The certificates of the cluster's root, as DER; none for a cluster without TLS.
    pub roots: Vec<Vec<u8>>,
}

/// Why a text is no credential file. It names a line, never what stands there: that may be the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCredentialFile {
    /// It begins as no credential file does.
    #[error("this is no credential file: its first line is not `tenure-credential: 1`")]
    NotOne,
    /// It was written by a newer release.
    #[error("this credential file is of version {0}, and this release reads version 1; use a newer release")]
    Newer(u32),
    /// It is too large for one.
    #[error("this is no credential file: it has more than {CREDENTIAL_FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// A line that means nothing here.
    #[error("line {line} of the credential file cannot be read: {why}")]
    Line {
        /// Counted from one.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A line that must be there.
    #[error("the credential file has no line `{0}:`")]
    Missing(&'static str),
}

impl CredentialFile {
    /// The text of the file, secret and all.
    pub fn reveal(&self) -> Zeroizing<String> {
        let mut text = format!("tenure-credential: 1\nname: {}\n", self.name);
        if !self.endpoints.is_empty() {
            text += &format!("endpoints: {}\n", self.endpoints.join(","));
        }
        if let Some(expires) = &self.expires {
            text += &format!("expires: {expires}\n");
        }
        // Reserved at once, so that no smaller copy with the secret in it is left behind in memory.
        let mut whole =
            Zeroizing::new(String::with_capacity(text.len() + 128 + self.roots.len() * (4 << 10)));
        whole.push_str(&text);
        whole.push_str("credential: ");
        whole.push_str(&self.bearer.reveal());
        whole.push('\n');
        whole.push_str(&self.roots_text());
        whole
    }

    /// The certificates of the root, as a PEM file has them.
    pub fn roots_text(&self) -> String {
        let mut text = String::new();
        for root in &self.roots {
            text += &format!("\n{BEGIN}\n");
            for line in STANDARD.encode(root).as_bytes().chunks(64) {
                text += std::str::from_utf8(line).expect("base64 is ASCII");
                text.push('\n');
            }
            text += &format!("{END}\n");
        }
        text
    }
}

impl FromStr for CredentialFile {
    type Err = InvalidCredentialFile;

    fn from_str(text: &str) -> Result<CredentialFile, InvalidCredentialFile> {
        if text.len() > CREDENTIAL_FILE_BYTES_MAX {
            return Err(InvalidCredentialFile::TooLarge);
        }
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim_end()));
        let version = lines.next().and_then(|(_, line)| line.strip_prefix("tenure-credential:"));
        match version.and_then(|version| version.trim().parse().ok()) {
            Some(1) => {}
            Some(newer) if newer > 1 => return Err(InvalidCredentialFile::Newer(newer)),
            _ => return Err(InvalidCredentialFile::NotOne),
        }
        let [mut name, mut endpoints, mut expires, mut bearer] = [const { None::<(usize, &str)> }; 4];
        let mut roots = Vec::new();
        while let Some((line, text)) = lines.next() {
            let wrong = |why| InvalidCredentialFile::Line { line, why };
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if text == BEGIN {
                if roots.len() == ROOTS_MAX {
                    return Err(wrong("there are too many certificates"));
                }
                roots.push(certificate(&mut lines).map_err(wrong)?);
                continue;
            }
            let (key, value) =
                text.split_once(':').ok_or(wrong("it is neither `name: value` nor a certificate"))?;
            let slot = match key {
                "name" => &mut name,
                "endpoints" => &mut endpoints,
                "expires" => &mut expires,
                "credential" => &mut bearer,
                _ => return Err(wrong("this release does not know what it says")),
            };
            let value = value.trim();
            if value.is_empty() || value.contains(char::is_control) {
                return Err(wrong("its value is empty, or has a control character"));
            }
            if slot.replace((line, value)).is_some() {
                return Err(wrong("there is a line like this before it"));
            }
        }
        let (line, bearer) = bearer.ok_or(InvalidCredentialFile::Missing("credential"))?;
        let broken = |_| InvalidCredentialFile::Line { line, why: "the credential is not whole" };
        let (_, name) = name.ok_or(InvalidCredentialFile::Missing("name"))?;
        let endpoints = endpoints.map_or("", |(_, endpoints)| endpoints).split(',').map(str::trim);
        Ok(CredentialFile {
            name: name.to_owned(),
            endpoints: endpoints.filter(|one| !one.is_empty()).map(str::to_owned).collect(),
            expires: expires.map(|(_, expires)| expires.to_owned()),
            bearer: bearer.parse().map_err(broken)?,
            roots,
        })
    }
}

/// The rest of a certificate whose first line was read.
fn certificate<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Result<Vec<u8>, &'static str> {
    let mut encoded = String::new();
    loop {
        match lines.next().ok_or("the certificate has no end")?.1 {
            END => break,
            line => encoded.push_str(line),
        }
    }
    match STANDARD.decode(encoded) {
        Ok(der) if !der.is_empty() => Ok(der),
        _ => Err("the certificate is not base64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer() -> Bearer {
        let secret = std::array::from_fn(|at| at as u8 ^ 0xa5);
        Bearer::new("00010203ffeeddcc".parse().unwrap(), secret)
    }

    fn file() -> CredentialFile {
        CredentialFile {
            name: "pay-worker".into(),
            endpoints: vec!["10.0.0.1:7400".into(), "db-2:7400".into()],
            expires: Some("2027-02-16T09:00:00.000Z".into()),
            bearer: bearer(),
            roots: vec![vec![0x30; 100], vec![1, 2, 3]],
        }
    }

    /// A file that was written once is read by every later release.
    #[test]
    fn the_file_is_as_it_was_promised() {
        let written = file().reveal();
        assert_eq!(
            *written,
            "tenure-credential: 1\n\
             name: pay-worker\n\
             endpoints: 10.0.0.1:7400,db-2:7400\n\
             expires: 2027-02-16T09:00:00.000Z\n\
             credential: tenure_00010203ffeeddcc_\
             a5a4a7a6a1a0a3a2adacafaea9a8abaab5b4b7b6b1b0b3b2bdbcbfbeb9b8bbba\n\
             \n-----BEGIN CERTIFICATE-----\n\
             MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw\n\
             MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw\n\
             MDAwMA==\n\
             -----END CERTIFICATE-----\n\
             \n-----BEGIN CERTIFICATE-----\n\
             AQID\n\
             -----END CERTIFICATE-----\n"
        );
        assert_eq!(written.parse(), Ok(file()));
        let plain = CredentialFile { endpoints: vec![], expires: None, roots: vec![], ..file() };
        assert_eq!(plain.reveal().parse(), Ok(plain));
    }

    #[test]
    fn what_windows_and_people_add_changes_nothing() {
        let text =
            file().reveal().replace('\n', "\r\n").replacen("name:", "# for the pay team\r\nname:  ", 1);
        assert_eq!(text.parse(), Ok(file()));
    }

    #[test]
    fn a_broken_file_is_refused_without_being_repeated() {
        let whole = file().reveal();
        let secret = &bearer().reveal()[24..];
        let cases = [
            ("".to_owned(), "first line"),
            ("tenure-credential: 2\nname: x".into(), "version 2"),
            ("tenure-credential: one\nname: x".into(), "first line"),
            (whole.replace("name: pay-worker\n", ""), "no line `name:`"),
            (whole.replace("name:", "nmae:"), "does not know"),
            (whole.replace("name: pay-worker", "name:"), "empty"),
            (whole.replace("name: pay-worker", "name: a\nname: b"), "before it"),
            (whole.replace("name: pay-worker", "pay-worker"), "neither"),
            (whole.replace("bbba\n", "bbb\n"), "not whole"),
            (whole.replace("bbba\n", "BBBA\n"), "not whole"),
            (whole.replace("AQID", "AQ!D"), "base64"),
            (whole.trim_end().trim_end_matches(END).into(), "no end"),
            (whole.to_string() + &"#\n".repeat(CREDENTIAL_FILE_BYTES_MAX), "more than"),
            (whole.to_string() + &format!("{BEGIN}\nAQID\n{END}\n").repeat(7), "too many"),
        ];
        for (text, why) in cases {
            let refused = text.parse::<CredentialFile>().expect_err(why).to_string();
            assert!(refused.contains(why), "{why}: {refused}");
            assert!(!refused.contains(&secret[..8]), "{refused}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let shown = format!("{:?} {:?}", bearer(), file());
        assert!(shown.contains("tenure_00010203ffeeddcc_…"), "{shown}");
        assert!(!shown.contains("a5a4"), "{shown}");
        assert!(!shown.contains("165"), "{shown}");
    }

    #[test]
    fn a_bearer_is_whole_or_none() {
        let text = bearer().reveal();
        assert_eq!(text.parse(), Ok(bearer()));
        for cut in 0..text.len() {
            assert_eq!(text[..cut].parse::<Bearer>(), Err(InvalidBearer), "{cut}");
        }
        for other in [format!("{}0", *text), format!(" {}", *text), text.replace("tenure_", "TENURE_")] {
            assert_eq!(other.parse::<Bearer>(), Err(InvalidBearer));
        }
    }
}
