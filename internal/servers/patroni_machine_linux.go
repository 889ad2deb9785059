package servers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kill ends Patroni and PostgreSQL by SIGKILL and waits for both. Data stay as they
// are. It may be called on a member that isn't running.
func (m *PatroniMember) Kill() {
	m.process.Kill()
	pid := m.postmaster()
	if pid == 0 {
		return
	}
	backends := childrenOf(pid)
	for _, p := range append(backends, pid) {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if m.postmaster() == 0 { // a zombie has no folder either
			return
		}
	}
}

// Abandon ends Patroni by SIGKILL and leaves PostgreSQL as it is, a primary or not: nobody demotes
// it any more.
func (m *PatroniMember) Abandon() { m.process.Kill() }

// Freeze ends Patroni and stops PostgreSQL, every process of it, with SIGSTOP. Thaw lets
// PostgreSQL go on, as a primary if it was one: Patroni can't demote it before Start.
//
// Patroni itself isn't frozen: Debian's, 3.0.2, that goes on in the midst of its loop
// takes the key of the leader back from a member that has been promoted meanwhile.
func (m *PatroniMember) Freeze() error {
	m.process.Kill()
	pid := m.postmaster()
	if pid == 0 {
		return fmt.Errorf("PostgreSQL of %s is not running", m.Name)
	}
	if err := freeze(pid); err != nil { // first of all: it starts no more
		return err
	}
	for _, child := range childrenOf(pid) {
		_ = freeze(child) // it may have just ended
	}
	return nil
}

func freeze(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return AwaitStopped(pid)
}

// Thaw lets a frozen PostgreSQL go on.
func (m *PatroniMember) Thaw() {
	if pid := m.postmaster(); pid != 0 {
		for _, p := range append(childrenOf(pid), pid) {
			_ = syscall.Kill(p, syscall.SIGCONT)
		}
	}
}

// postmaster is the process id of the member's PostgreSQL, or 0. The file may be that of
// a dead one, whose number another process has now.
func (m *PatroniMember) postmaster() int {
	text, err := os.ReadFile(filepath.Join(m.data(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	if folder, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || folder != m.data() {
		return 0
	}
	return pid
}

func childrenOf(parent int) (all []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		_, behind, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(behind)
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// Patroni gives its postmaster to init, so the kernel doesn't end that with the process
// that started Patroni. This waits for the end of its standard input, and then ends what
// runs in the data directories that it is told.
const endPostmasters = `
cat >/dev/null
for data; do
	read -r pid <"$data/postmaster.pid" && [ "$(readlink "/proc/$pid/cwd")" = "$data" ] && kill -QUIT "$pid" && kill -CONT "$pid"
done 2>/dev/null
`

// watch ends the postmasters with this process. A Patroni is a child, and ends with its
// parent by itself.
func (p *Patroni) watch() error {
	args := []string{"-c", endPostmasters, "watchdog"}
	for _, m := range p.Members {
		args = append(args, m.data())
	}
	p.watchdog = exec.Command("sh", args...)
	p.watchdog.SysProcAttr = &syscall.SysProcAttr{Credential: p.Members[0].account, Setpgid: true}
	var err error
	if p.leash, err = p.watchdog.StdinPipe(); err != nil {
		return err
	}
	return p.watchdog.Start()
}

// Close ends all servers and removes their folders. It may be called twice.
func (p *Patroni) Close() {
	for _, m := range p.Members {
		if m != nil {
			m.Close()
		}
	}
	if p.leash != nil {
		_ = p.leash.Close()
		_ = p.watchdog.Wait()
		p.leash = nil
	}
	if p.etcd != nil {
		p.etcd.Close()
	}
}

// Close ends the member's processes and removes its folder. It may be called twice.
func (m *PatroniMember) Close() {
	m.Kill()
	if m.Replicated != nil {
		m.Replicated.Close()
	}
	m.process.Close()
}
