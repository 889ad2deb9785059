package wire

import (
	"github.com/jackc/pgx/v5/pgproto3"
)

// Error is an ErrorResponse of the proxy's own.
type Error struct {
	Severity string // ERROR or FATAL
	Code     string
	Message  string
	Detail   string
	Hint     string
}

// Append appends the error as an ErrorResponse.
func (e Error) Append(dst []byte) []byte {
	msg := pgproto3.ErrorResponse{
		Severity: e.Severity, SeverityUnlocalized: e.Severity,
		Code: e.Code, Message: e.Message, Detail: e.Detail, Hint: e.Hint,
	}
	out, err := msg.Encode(dst)
	if err != nil { // the text is larger than a message
		return dst
	}
	return out
}

// DecodeError decodes a whole ErrorResponse or NoticeResponse. The result shares no memory
// with msg.
func DecodeError(msg []byte) (*pgproto3.ErrorResponse, error) {
	var e pgproto3.ErrorResponse
	if err := e.Decode(msg[HeaderSize:]); err != nil {
		return nil, err
	}
	return &e, nil
}

// ReadError returns Error's fields of a whole ErrorResponse, nil for a malformed one.
func ReadError(msg []byte) *Error {
	e, err := DecodeError(msg)
	if err != nil {
		return nil
	}
	return &Error{Severity: e.SeverityUnlocalized, Code: e.Code, Message: e.Message, Detail: e.Detail, Hint: e.Hint}
}

// ErrorCode returns the SQLSTATE of a whole ErrorResponse without decoding the
// rest of it.
func ErrorCode(msg []byte) string { return ErrorField(msg, 'C') }

// ErrorField returns one field of a whole ErrorResponse, by its type
// (documentation, "Error and Notice Message Fields"); "" if it has none.
func ErrorField(msg []byte, field byte) string {
	for b := msg[HeaderSize:]; len(b) > 1 && b[0] != 0; {
		value, rest, ok := CString(b[1:])
		if !ok {
			return ""
		}
		if b[0] == field {
			return string(value)
		}
		b = rest
	}
	return ""
}
