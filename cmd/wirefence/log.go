package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
)

// newLogger writes to standard error: text on a terminal, JSON otherwise.
func newLogger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("log level %q is none of debug, info, warn, error", level)}
	}
	options := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(format) {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	case "auto":
		if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
		}
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return nil, usageError{fmt.Errorf("log format %q is none of auto, text, json", format)}
}
