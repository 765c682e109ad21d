//! Frames on a peer connection: `length u32 · kind u8 · call u64 · body`, little-endian.
//!
//! TCP checks the bytes and keeps their order; a frame only says where the next one begins, what it
//! is and which call it belongs to.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const HEADER_BYTES: usize = 13;
/// No frame is larger: an entry is limited far below this by who proposes it.
const BODY_BYTES_MAX: usize = 64 << 20;
/// What a stranger may send before it has said who it is.
const STRANGER_BYTES_MAX: usize = 4 << 10;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: u8,
    /// Chosen by the caller, repeated in the answer.
    pub call: u64,
    pub body: Bytes,
}

/// Takes frames off a stream. Waiting for the next one can be given up and taken up again.
pub(crate) struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(8 << 10), bytes_max: STRANGER_BYTES_MAX }
    }

    /// The other side has said who it is: from now on it may send large frames.
    pub fn trust(&mut self) {
        self.bytes_max = BODY_BYTES_MAX;
    }

    /// The next frame; `UnexpectedEof` when the other side has closed the stream.
    pub async fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn take(&mut self) -> io::Result<Option<Frame>> {
        if self.buffer.len() < HEADER_BYTES {
            return Ok(None);
        }
        let length = u32::from_le_bytes(self.buffer[0..4].try_into().expect("four bytes")) as usize;
        if length > self.bytes_max {
            let message = format!("a frame of {length} bytes, where {} are the limit", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if self.buffer.len() < HEADER_BYTES + length {
            self.buffer.reserve(HEADER_BYTES + length - self.buffer.len());
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(HEADER_BYTES + length).freeze();
        frame.advance(4);
        let kind = frame.get_u8();
        let call = frame.get_u64_le();
        Ok(Some(Frame { kind, call, body: frame }))
    }
}

/// Puts a frame on a stream, without flushing.
pub(crate) async fn write<W: AsyncWrite + Unpin>(stream: &mut W, frame: &Frame) -> io::Result<()> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.put_u32_le(u32::try_from(frame.body.len()).expect("a frame must be smaller than 4 GiB"));
    header.put_u8(frame.kind);
    header.put_u64_le(frame.call);
    stream.write_all(&header).await?;
    stream.write_all(&frame.body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_arrive_whole_however_the_bytes_do() {
        let sent = [
            Frame { kind: 1, call: 7, body: Bytes::from_static(b"hello") },
            Frame { kind: 2, call: u64::MAX, body: Bytes::new() },
        ];
        let mut bytes = Vec::new();
        for frame in &sent {
            write(&mut bytes, frame).await.unwrap();
        }
        let (mut near, far) = tokio::io::duplex(3);
        let feed = async move {
            near.write_all(&bytes).await.unwrap();
        };
        let take = async move {
            let mut reader = FrameReader::new(far);
            assert_eq!(reader.next().await.unwrap(), sent[0]);
            assert_eq!(reader.next().await.unwrap(), sent[1]);
            assert_eq!(reader.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        };
        tokio::join!(feed, take);
    }

    #[tokio::test]
    async fn an_absurd_length_is_refused_before_anything_is_allocated() {
        let bytes = [0xff; 32];
        let mut reader = FrameReader::new(&bytes[..]);
        reader.trust();
        assert_eq!(reader.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_stranger_is_not_given_much_room() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Frame { kind: 0, call: 0, body: vec![0; 5000].into() }).await.unwrap();
        let error = FrameReader::new(&bytes[..]).next().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
