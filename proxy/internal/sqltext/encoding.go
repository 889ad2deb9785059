package sqltext

// Encoding is a class of client_encodings with the same lengths of characters.
type Encoding uint8

// The encodings. Those from SJIS on have trail bytes that look like ASCII.
const (
	UTF8       Encoding = iota
	SingleByte          // LATIN1, WIN1252, KOI8R, SQL_ASCII and so on
	EUCJP               // EUC_JP, EUC_JIS_2004
	EUCTwoByte          // EUC_CN, EUC_KR
	EUCTW
	MuleInternal
	SJIS // SJIS, SHIFT_JIS_2004
	BIG5
	GBK
	UHC
	JOHAB
	GB18030
)

// ParseEncoding parses the value of client_encoding as the server reports it. An unknown
// one counts as SingleByte.
func ParseEncoding(name string) Encoding {
	var buf [20]byte
	n := 0
	for i := 0; i < len(name) && n < len(buf); i++ {
		switch c := lower[name[i]]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			buf[n] = c
			n++
		}
	}
	switch string(buf[:n]) {
	case "utf8", "unicode":
		return UTF8
	case "eucjp", "eucjis2004":
		return EUCJP
	case "euccn", "euckr":
		return EUCTwoByte
	case "euctw":
		return EUCTW
	case "muleinternal":
		return MuleInternal
	case "sjis", "mskanji", "shiftjis", "shiftjis2004", "win932", "windows932":
		return SJIS
	case "big5", "win950", "windows950":
		return BIG5
	case "gbk", "win936", "windows936":
		return GBK
	case "uhc", "win949", "windows949":
		return UHC
	case "johab":
		return JOHAB
	case "gb18030":
		return GB18030
	}
	return SingleByte
}

// unsafe reports whether a trail byte may look like ASCII.
func (e Encoding) unsafe() bool { return e >= SJIS }

// charLen returns the length of the first character of text, at least 1 and at most
// len(text), as the server's pg_encoding_mblen does.
func (e Encoding) charLen(text []byte) int {
	c := text[0]
	if c < 0x80 {
		return 1
	}
	n := 1
	switch e {
	case UTF8:
		n = utf8Len(c)
	case EUCJP, JOHAB:
		n = 2
		if c == ss3 {
			n = 3
		}
	case EUCTwoByte, BIG5, GBK, UHC:
		n = 2
	case EUCTW:
		n = 2
		if c == ss2 {
			n = 4
		} else if c == ss3 {
			n = 3
		}
	case MuleInternal:
		n = muleLen(c)
	case SJIS:
		if c < 0xa1 || c > 0xdf { // else a half-width kana
			n = 2
		}
	case GB18030:
		n = 2
		if len(text) > 1 && '0' <= text[1] && text[1] <= '9' {
			n = 4
		}
	}
	return min(n, len(text))
}

// The single shifts of EUC.
const ss2, ss3 = 0x8e, 0x8f

func utf8Len(c byte) int {
	switch {
	case c&0xe0 == 0xc0:
		return 2
	case c&0xf0 == 0xe0:
		return 3
	case c&0xf8 == 0xf0:
		return 4
	}
	return 1
}

func muleLen(c byte) int {
	switch {
	case 0x81 <= c && c <= 0x8d:
		return 2
	case c == 0x9a || c == 0x9b || 0x90 <= c && c <= 0x99:
		return 3
	case c == 0x9c || c == 0x9d:
		return 4
	}
	return 1
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
