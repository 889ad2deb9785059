package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// firstPassed is the first descriptor that systemd passes (sd_listen_fds(3)).
const firstPassed = 3

// passedSockets returns the listening sockets that systemd has opened for this process,
// by the names that their units give them; none where there is no systemd. It may be
// called once.
func passedSockets() (map[string][]net.Listener, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil // they were for another process
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("LISTEN_FDS is %q: it is no number of descriptors", count)
	}
	all := map[string][]net.Listener{}
	for i, name := range socketNames(names, n) {
		l, err := passedSocket(firstPassed+i, name)
		if err != nil {
			return nil, err
		}
		all[name] = append(all[name], l)
	}
	return all, nil
}

// socketNames returns n names; systemd's word for a descriptor without one is unknown.
func socketNames(list string, n int) []string {
	names := make([]string, n)
	given := strings.Split(list, ":")
	for i := range names {
		names[i] = "unknown"
		if i < len(given) && given[i] != "" {
			names[i] = given[i]
		}
	}
	return names
}

func passedSocket(fd int, name string) (net.Listener, error) {
	syscall.CloseOnExec(fd)
	listens, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err == nil && listens == 0 {
		err = errors.New("it doesn't listen: the socket unit must have ListenStream= and Accept=no")
	}
	if err != nil {
		return nil, fmt.Errorf("the socket %s that was passed as descriptor %d can't be used: %w", name, fd, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	return net.FileListener(file)
}

// warnOfUnused warns of sockets that nothing accepts from: clients would wait for ever.
func warnOfUnused(sockets map[string][]net.Listener, cfg proxySettings, log *slog.Logger) {
	named := map[string]bool{}
	for _, at := range slices.Concat([]string{cfg.AdminListen}, cfg.apiListen(), cfg.Listen) {
		named[strings.TrimSpace(at)] = true
	}
	for name, all := range sockets {
		if named["fd:"+name] {
			continue
		}
		for _, l := range all {
			log.Warn("systemd passed a socket that no setting names: name it in WIREFENCE_LISTEN, WIREFENCE_API_LISTEN or WIREFENCE_ADMIN_LISTEN, or stop its unit", "socket", "fd:"+name, "address", l.Addr().String())
		}
	}
}

// serviceManager sends the state of the service to systemd, for Type=notify
// (sd_notify(3)). Without systemd it sends nothing.
type serviceManager struct {
	address string
	log     *slog.Logger
	serving atomic.Bool
}

func newServiceManager(log *slog.Logger) *serviceManager {
	m := &serviceManager{address: os.Getenv("NOTIFY_SOCKET"), log: log}
	_ = os.Unsetenv("NOTIFY_SOCKET")
	return m
}

// notifyTime is how long a service manager has to take a message: one that hangs, with a
// full queue, must delay neither the start nor a drain.
const notifyTime = time.Second

func (m *serviceManager) tell(lines ...string) {
	if m.address == "" {
		return
	}
	conn, err := net.Dial("unixgram", m.address)
	if err == nil {
		if err = conn.SetWriteDeadline(time.Now().Add(notifyTime)); err == nil {
			_, err = conn.Write([]byte(strings.Join(lines, "\n")))
		}
		_ = conn.Close()
	}
	if err != nil {
		m.log.Warn("cannot report the state of the service to the service manager", "state", lines[0], "error", err)
	}
}

func (m *serviceManager) ready(addresses []string) {
	m.serving.Store(true)
	m.tell("READY=1", "STATUS=Serving at "+strings.Join(addresses, ", "))
}

// reloading and reloaded enclose the reloads of a SIGHUP.
func (m *serviceManager) reloading() error {
	if m.serving.Load() {
		m.tell("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(monotonic().Microseconds(), 10))
	}
	return nil
}

func (m *serviceManager) reloaded() error {
	if m.serving.Load() {
		m.tell("READY=1")
	}
	return nil
}

// endTime is the time that a proxy needs besides its drain: a second in which another
// process takes over, cancelling the remaining statements, and releasing the lease.
const endTime = 15 * time.Second

// stopping asks for the time that the settings give a drain, which may be longer than the
// unit's.
func (m *serviceManager) stopping(cfg proxySettings) {
	m.serving.Store(false)
	most := cfg.DrainGrace + cfg.DrainTimeout + endTime
	m.tell("STOPPING=1", "STATUS=Draining", "EXTEND_TIMEOUT_USEC="+strconv.FormatInt(most.Microseconds(), 10))
}

// monotonic is the time by the clock that systemd compares.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // which can't fail
	return time.Duration(now.Nano())
}
