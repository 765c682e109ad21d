//! How messages get onto a stream and off it: as Protocol Buffers, in buffers that begin small.
//!
//! A stream has a buffer for each direction. There may be thousands of streams on which now and then a few renewals go by, so
//! a buffer grows with what really goes by and not ahead of it.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// What a buffer begins with: a dozen commands, or fifty renewals.
const BUFFER_BYTES: usize = 1 << 10;
/// As much as is gathered before it is sent, if there is more than one message to send.
const GATHERED_BYTES: usize = 32 << 10;

/// See the module.
pub struct Messages<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Messages<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for Messages<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, GATHERED_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, GATHERED_BYTES))
    }
}
