package sqltext

import (
	"math/bits"
	"strings"
)

// Encoding is a class of client_encodings with the same lengths of characters. In EUC_TW and
// MULE_INTERNAL, which no client is known to use, positions of errors count bytes.
type Encoding uint8

// The encodings. Those from SJIS on have trail bytes that look like ASCII.
const (
	SingleByte Encoding = iota // LATIN1, WIN1252, KOI8R, SQL_ASCII and so on
	UTF8
	EUCJP      // EUC_JP, EUC_JIS_2004
	EUCTwoByte // EUC_CN, EUC_KR
	SJIS       // SJIS, SHIFT_JIS_2004
	BIG5
	GBK
	UHC
	JOHAB
	GB18030
)

// encodings are the names of multibyte encodings, of which PostgreSQL compares the letters
// and digits. A server reports the first of several; a pooler what its client wrote.
var encodings = map[string]Encoding{
	"utf8": UTF8, "unicode": UTF8, "eucjp": EUCJP, "eucjis2004": EUCJP, "euccn": EUCTwoByte, "euckr": EUCTwoByte,
	"sjis": SJIS, "mskanji": SJIS, "shiftjis": SJIS, "win932": SJIS, "windows932": SJIS, "shiftjis2004": SJIS,
	"big5": BIG5, "win950": BIG5, "windows950": BIG5, "gbk": GBK, "win936": GBK, "windows936": GBK,
	"uhc": UHC, "win949": UHC, "windows949": UHC, "johab": JOHAB, "gb18030": GB18030,
}

// ParseEncoding parses the value of client_encoding as the server reports it. An unknown
// one counts as SingleByte.
func ParseEncoding(name string) Encoding {
	return encodings[strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(name))]
}

// unsafe reports whether a trail byte may look like ASCII.
func (e Encoding) unsafe() bool { return e >= SJIS }

// charLen returns the length of the first character of text, at least 1 and at most
// len(text), as the server's pg_encoding_mblen does.
func (e Encoding) charLen(text []byte) int {
	const ss3 = 0x8f // a single shift of EUC
	c := text[0]
	n := 2
	switch {
	case c < 0x80, e == SingleByte, e == SJIS && 0xa1 <= c && c <= 0xdf: // a half-width kana
		n = 1
	case e == UTF8:
		if n = bits.LeadingZeros8(^c); n > 4 {
			n = 1
		}
	case e == GB18030 && len(text) > 1 && '0' <= text[1] && text[1] <= '9':
		n = 4
	case c == ss3 && (e == EUCJP || e == JOHAB):
		n = 3
	}
	return min(n, len(text))
}

// CountChars counts the characters of text, as PostgreSQL counts error
// positions.
func CountChars(text []byte, enc Encoding) int {
	if enc == SingleByte {
		return len(text)
	}
	n := 0
	for len(text) > 0 {
		text = text[enc.charLen(text):]
		n++
	}
	return n
}
