package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxBody is the largest request, in bytes.
const maxBody = 16 << 10

// seconds is a time in messages: a number of seconds, to the millisecond.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
	// Rounded down: a holder must not count on a millisecond that isn't there.
	return json.Marshal(math.Floor(float64(s)/float64(time.Millisecond)) / 1000)
}

func (s *seconds) UnmarshalJSON(text []byte) error {
	var number float64
	if err := json.Unmarshal(text, &number); err != nil {
		return err
	}
	if math.Abs(number) > 1e9 {
		return errors.New("is out of range")
	}
	*s = seconds(math.Round(number*1000) * float64(time.Millisecond))
	return nil
}

// read decodes the body: one JSON object with fields of T only, spelled exactly, and without
// null.
func read[T any](w http.ResponseWriter, r *http.Request) (message T, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return message, &problem{Status: http.StatusRequestEntityTooLarge, Type: "too-large", Detail: fmt.Sprintf("A request has up to %d bytes.", maxBody)}
	} else if err != nil {
		return message, badRequest("the body could not be read: %v", err)
	}
	if !utf8.Valid(body) {
		return message, badRequest("the body is not UTF-8")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return message, badRequest("the body must be a JSON object")
	}
	known := reflect.ValueOf(&message).Elem()
	for name, value := range members {
		field, ok := fieldOf(known, name)
		if !ok {
			return message, badRequest("there is no field %q", name)
		}
		if _, nullable := field.Interface().(preemptAfter); bytes.Equal(value, []byte("null")) && !nullable {
			return message, badRequest("the field %s is null; leave it out", name)
		}
		if err := json.Unmarshal(value, field.Addr().Interface()); err != nil {
			return message, badRequest("the field %s must be %s", name, kindOf(field))
		}
	}
	return message, nil
}

func fieldOf(message reflect.Value, name string) (reflect.Value, bool) {
	for _, field := range reflect.VisibleFields(message.Type()) {
		if field.Tag.Get("json") == name {
			return message.FieldByIndex(field.Index), true
		}
	}
	return reflect.Value{}, false
}

func kindOf(field reflect.Value) string {
	kind := field.Type()
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch {
	case kind.Kind() == reflect.String:
		return "a string"
	case kind.Kind() == reflect.Bool:
		return "true or false"
	case kind == reflect.TypeFor[givenToken]():
		return "an integer, or its digits in a string"
	}
	return "a number of seconds"
}

// utc returns a time for a message; nil for the zero time.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// write answers 200 with a message.
func write(w http.ResponseWriter, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(append(body, '\n')); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// The longest texts that a caller gives, in bytes.
const (
	maxHolder = 160
	maxKey    = 39
	maxGrant  = maxHolder + 1 + maxKey
	maxReason = 200
)

// wantText returns a problem unless text is printable UTF-8 of minimum to maximum bytes.
func wantText(field, text string, minimum, maximum int) error {
	if len(text) < minimum || len(text) > maximum || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return badRequest("the field %s must have %d to %d bytes of printable UTF-8", field, minimum, maximum)
	}
	return nil
}

// wantTime returns a problem unless a time is in its range.
func wantTime(field string, got seconds, minimum, maximum time.Duration) error {
	if d := time.Duration(got); d < minimum || d > maximum {
		return badRequest("the field %s must be from %v to %v seconds", field, minimum.Seconds(), maximum.Seconds())
	}
	return nil
}
