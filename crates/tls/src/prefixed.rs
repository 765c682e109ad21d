//! A stream of which something was read already, to find out what it speaks.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// The first byte of every TLS connection: a record with a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;

/// Gives back what was read, then goes on with the stream.
#[derive(Debug)]
pub struct Prefixed<S> {
    head: Vec<u8>,
    given: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> Prefixed<S> {
    /// Reads what is there of the first `bytes` bytes, at least one.
    pub async fn peek(mut stream: S, bytes: usize) -> io::Result<Prefixed<S>> {
        let mut head = vec![0; bytes];
        let read = stream.read(&mut head).await?;
        head.truncate(read);
        Ok(Prefixed { head, given: 0, stream })
    }
}

impl<S> Prefixed<S> {
    /// What was read.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether it begins as TLS does.
    pub fn begins_tls(&self) -> bool {
        self.head.first() == Some(&TLS_HANDSHAKE)
    }

    /// The stream, without what was read.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.head[self.given..];
        if !left.is_empty() {
            let count = left.len().min(buffer.remaining());
            buffer.put_slice(&left[..count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
