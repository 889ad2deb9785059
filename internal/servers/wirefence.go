package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Wirefence is a `wirefence proxy`.
type Wirefence struct {
	process
	Admin string // host:port of the admin listener; "" where that is off
}

// BuildWirefence builds the program of a source folder, with further flags of go build.
func BuildWirefence(ctx context.Context, source, binary string, flags ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-ldflags=-w", "-o", binary}, flags...)
	build := exec.CommandContext(ctx, "go", append(args, "./cmd/wirefence")...)
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// ClearSettings removes settings that are meant for other servers from the environment.
func ClearSettings() {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OTEL_") || strings.HasPrefix(name, "WIREFENCE_") && name != "WIREFENCE_CACHE" {
			os.Unsetenv(name)
		}
	}
}

// StartWirefence starts a proxy with settings, NAME=value, on free loopback ports. It returns
// when the proxy serves.
func StartWirefence(ctx context.Context, binary string, settings ...string) (*Wirefence, error) {
	w, admin := &Wirefence{}, 0
	if err := w.prepare(binary, &admin); err != nil {
		return nil, err
	}
	w.command, w.apart = append(w.command, "proxy"), true
	w.env = append([]string{"WIREFENCE_LISTEN=" + w.Addr()}, settings...)
	if !slices.Contains(settings, "WIREFENCE_ADMIN_LISTEN=off") {
		w.Admin = fmt.Sprint("127.0.0.1:", admin)
		w.env = append(w.env, "WIREFENCE_ADMIN_LISTEN="+w.Admin)
	}
	w.ready = func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.Addr())
		if err != nil {
			return err
		}
		conn.Close()
		if w.Admin == "" {
			return nil
		}
		return answersOK(ctx, "http://"+w.Admin+"/livez")
	}
	return orClosed(w, w.Start(ctx))
}

// Answers reports whether a path of the admin listener answers with 200.
func (w *Wirefence) Answers(ctx context.Context, path string) bool {
	return answersOK(ctx, "http://"+w.Admin+path) == nil
}

// Drain ends the proxy as a rollout does. The error is its exit status, with its log.
func (w *Wirefence) Drain() error {
	w.Stop()
	if w.failed != nil {
		return fmt.Errorf("wirefence proxy: %w\n%s", w.failed, w.Log())
	}
	return nil
}
