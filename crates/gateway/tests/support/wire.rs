//! A second opinion on HTTP/1.1 framing: small, strict, and independent of the proxy's own parser. What it cannot
//! read beyond doubt is an error, because an upstream in doubt is what smuggling needs.

/// One request as it stood on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Message {
    /// Takes one message off the front of `bytes`. `None` if it is not all there yet.
    pub fn parse(bytes: &mut &[u8]) -> Result<Option<Self>, String> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
        // Byte for byte: field values may carry any octet above 0x7f.
        let head: String = bytes[..end].iter().map(|byte| char::from(*byte)).collect();
        let mut lines = head.split("\r\n");
        let first: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
        let [method, target, "HTTP/1.1"] = first[..] else { return Err(format!("request line {first:?}")) };
        let mut headers = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':').ok_or_else(|| format!("header line {line:?}"))?;
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if name.is_empty() || !name.chars().all(token) || value.contains(['\r', '\n', '\0']) {
                return Err(format!("header line {line:?}"));
            }
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let all = |name: &str| -> Vec<&str> {
            headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
        };
        let mut rest = &bytes[end + 4..];
        let body = match (&all("content-length")[..], &all("transfer-encoding")[..]) {
            ([], []) => Some(Vec::new()),
            ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                let length: usize = length.parse().map_err(|_| format!("length {length:?}"))?;
                take(&mut rest, length).map(<[u8]>::to_vec)
            }
            ([], ["chunked"]) => chunks(&mut rest)?,
            framing => return Err(format!("ambiguous framing {framing:?}")),
        };
        let Some(body) = body else { return Ok(None) };
        if all("host").len() != 1 {
            return Err("not exactly one Host".into());
        }
        let message = Self { method: method.to_owned(), target: target.to_owned(), headers, body };
        *bytes = rest;
        Ok(Some(message))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        let lines: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        format!("{} {}\n{lines}\n{}", self.method, self.target, String::from_utf8_lossy(&self.body))
    }
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn chunks(bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[..end]).unwrap_or("?");
        // Extensions are legal; the proxy re-chunks and must never pass any on.
        let size = usize::from_str_radix(size, 16).map_err(|_| format!("chunk size {size:?}"))?;
        *bytes = &bytes[end + 2..];
        let Some(chunk) = take(bytes, size) else { return Ok(None) };
        body.extend_from_slice(chunk);
        match take(bytes, 2) {
            None => return Ok(None),
            Some(b"\r\n") if size == 0 => return Ok(Some(body)),
            Some(b"\r\n") => {}
            Some(other) => return Err(format!("after a chunk: {other:?}")),
        }
    }
}
