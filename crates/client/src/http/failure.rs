//! From a transport's error to what happened, by what the libraries underneath state: hyper, h2, rustls and the operating
//! system. Texts are not read; what is not known for sure may have happened (V15).

use std::{error::Error, io};

use retrysafe_core::retry::{Failure, NotSent};

/// Causes that are looked at; error chains are short, and a cycle would not end.
const CAUSES_MAX: usize = 16;

/// The facts in `error` and its causes. Whether it failed while connecting the transport's own error type may have to add.
pub(crate) fn failure_of(error: &(dyn Error + 'static)) -> Failure {
    let mut failure = Failure::default();
    let mut next = Some(error);
    for _ in 0..CAUSES_MAX {
        let Some(cause) = next else { break };
        note(cause, &mut failure);
        next = cause.source();
    }
    failure
}

fn note(cause: &(dyn Error + 'static), failure: &mut Failure) {
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        note_io(error, failure);
    } else if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        // Canceled: taken back from a connection that had closed before the request was written to it.
        if error.is_canceled() {
            failure.reach = retrysafe_core::retry::Reach::Nothing;
        }
        failure.closed |= error.is_incomplete_message() || error.is_closed();
        failure.timeout |= error.is_timeout();
    } else if let Some(error) = cause.downcast_ref::<h2::Error>() {
        note_h2(error, failure);
    } else if let Some(error) = cause.downcast_ref::<rustls::Error>() {
        note_tls(error, failure);
    } else if let Some(error) = cause.downcast_ref::<hyper_util::client::legacy::Error>() {
        failure.connecting |= error.is_connect();
    } else if cause.downcast_ref::<NoSuchName>().is_some() {
        failure.connecting = true;
        failure.connect = Some(NotSent::Dns);
    }
}

fn note_io(error: &io::Error, failure: &mut Failure) {
    match error.kind() {
        // Nothing but connecting is refused.
        io::ErrorKind::ConnectionRefused => {
            (failure.connecting, failure.connect) = (true, Some(NotSent::Refused))
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
            failure.reset = true;
        }
        io::ErrorKind::UnexpectedEof => failure.closed = true,
        io::ErrorKind::TimedOut => failure.timeout = true,
        _ => {}
    }
    // `io::Error::source` skips the error that it wraps and goes on with that one's source.
    if let Some(inner) = error.get_ref() {
        note(inner, failure);
    }
}

fn note_h2(error: &h2::Error, failure: &mut Failure) {
    if error.is_reset() && error.is_remote() && error.reason() == Some(h2::Reason::REFUSED_STREAM) {
        failure.refused = Some(NotSent::RefusedStream);
    } else if error.is_go_away() && error.is_remote() {
        // h2 fails only streams above the last one that the server named; those below live on until the connection ends.
        failure.refused = Some(NotSent::GoAway);
    } else if error.is_reset() {
        failure.reset = true;
    }
    if let Some(io) = error.get_io() {
        note_io(io, failure);
    }
}

fn note_tls(error: &rustls::Error, failure: &mut Failure) {
    if let rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented = error {
        failure.connect = Some(NotSent::Certificate);
    }
}

/// The name does not resolve: what our resolver says, since the usual error of one has no type of its own.
#[derive(Debug, thiserror::Error)]
#[error("no such name")]
pub(crate) struct NoSuchName(#[source] pub(crate) io::Error);
