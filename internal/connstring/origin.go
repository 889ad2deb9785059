package connstring

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Origin is where a connection string's user and password come from anew for each connection: those of managed services
// expire.
type Origin struct {
	// File has held the connection string, "" for none, as the one with the index Entry.
	File  string `json:",omitempty"`
	Entry int    `json:",omitempty"`
	// Command, if any, is a shell's. The first line that it prints is the password of a connection string that has none.
	Command string `json:",omitempty"`
}

// mark is in no connection string, and divides one from its origin.
const mark = "\x00"

// Of returns a connection string with its origin, for Pool, Conn and At.
func (o Origin) Of(text string) string {
	if o == (Origin{}) || text == "" {
		return text
	}
	encoded, _ := json.Marshal(o) // strings and a number can be encoded
	return text + mark + string(encoded)
}

// Cut returns a connection string without its origin, and the origin.
func Cut(text string) (string, Origin) {
	text, encoded, _ := strings.Cut(text, mark)
	var o Origin
	if json.Unmarshal([]byte(encoded), &o) != nil {
		return text, Origin{}
	}
	return text, o
}

// Reload returns what reads the text anew: a setting that a file has held. It is nil where none has.
func (o Origin) Reload() func(context.Context) (string, error) {
	if o.File == "" {
		return nil
	}
	return func(ctx context.Context) (string, error) { return ReadFile(ctx, o.File) }
}

// renew has each connection of cfg take its user and password from the origin.
func (o Origin) renew(cfg *pgx.ConnConfig) {
	if o == (Origin{}) {
		return
	}
	env := append(os.Environ(), "PGHOST="+cfg.Host, fmt.Sprint("PGPORT=", cfg.Port), "PGUSER="+cfg.User, "PGDATABASE="+cfg.Database)
	// It is called ahead of the startup packet, with a configuration that is this connection's own.
	cfg.AfterNetConnect = func(ctx context.Context, c *pgconn.Config, conn net.Conn) (_ net.Conn, err error) {
		if o.File != "" {
			if err := o.read(ctx, c); err != nil {
				return conn, fmt.Errorf("read the connection string again: %w", err)
			}
		}
		if o.Command != "" {
			if c.Password, err = ask(ctx, o.Command, env); err != nil {
				return conn, fmt.Errorf("WIREFENCE_PASSWORD_COMMAND %w", err)
			}
		}
		return conn, nil
	}
}

// read takes the user and the password that the file names now. Its other parameters stay those of the start.
func (o Origin) read(ctx context.Context, c *pgconn.Config) error {
	text, err := ReadFile(ctx, o.File)
	if err != nil {
		return err
	}
	all := Split(text)
	if o.Entry >= len(all) {
		return fmt.Errorf("%s has only %d", o.File, len(all))
	}
	s, err := Parse(all[o.Entry])
	if err == nil {
		c.User, c.Password = cmp.Or(s["user"], c.User), cmp.Or(s["password"], c.Password)
	}
	return err
}

// passwordTime is the time limit of a command that gives a password.
const passwordTime = 10 * time.Second

// ask returns the first line that a command prints. An error has what it said on standard error, without that line.
func ask(ctx context.Context, command string, env []string) (password string, err error) {
	ctx, cancel := context.WithTimeout(ctx, passwordTime)
	defer cancel()
	began := time.Now()
	var answer, says beginning
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &answer, &says
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // what it has left behind may hold its output open
	err = cmd.Run()
	password, _, _ = strings.Cut(answer.String(), "\n")
	password = strings.TrimSuffix(password, "\r")
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("has not ended within %v", time.Since(began).Round(time.Second/10)) // pgx replaces the text of a timeout
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		err = fmt.Errorf("has failed: %w", err)
	case password == "":
		err = errors.New("has printed no password")
	case answer.Len() >= most:
		err = fmt.Errorf("has printed more than %d bytes", most)
	default:
		return password, nil
	}
	if password != "" {
		says.Buffer = *bytes.NewBuffer(bytes.ReplaceAll(says.Bytes(), []byte(password), []byte("(the password)")))
	}
	if said := strings.Join(strings.Fields(says.String()), " "); said != "" {
		err = fmt.Errorf("%w, and says: %.500s", err, said)
	}
	return "", err
}

// beginning keeps the beginning of what is written.
type beginning struct{ bytes.Buffer }

func (b *beginning) Write(text []byte) (int, error) {
	b.Buffer.Write(text[:min(len(text), most-b.Len())])
	return len(text), nil
}

// most is more than any connection string or password is long, in bytes.
const most = 64 << 10

// ReadFile returns the one line of a file with a connection string or another setting. It reads until the context ends: a
// named pipe can be without a writer.
func ReadFile(ctx context.Context, path string) (string, error) {
	var text []byte
	var err error
	over := make(chan struct{})
	go func() {
		defer close(over)
		var file *os.File
		if file, err = os.Open(path); err != nil {
			return
		}
		defer file.Close()
		text, err = io.ReadAll(io.LimitReader(file, most+1))
	}()
	select {
	case <-over:
	case <-ctx.Done():
		return "", fmt.Errorf("read %s: %w", path, context.Cause(ctx))
	}
	line := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case err != nil:
		return "", err
	case len(text) > most:
		return "", fmt.Errorf("%s has more than %d bytes, and holds no setting", path, most)
	case line == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsAny(line, "\n\x00"):
		return "", fmt.Errorf("%s has more than one line", path)
	}
	return line, nil
}

var nextURL = regexp.MustCompile(`[\s,]+postgres(ql)?://`)

// Split returns the connection strings of a text. A URL may have commas, between its hosts, so the next one begins where its
// scheme does. What isn't a connection string is refused where it is used.
func Split(text string) (all []string) {
	for rest := strings.TrimSpace(text); rest != ""; {
		end := len(rest)
		if at := nextURL.FindStringIndex(rest); at != nil {
			end = at[0]
		}
		all = append(all, rest[:end])
		rest = strings.TrimLeft(rest[end:], " \t\r\n,")
	}
	return all
}
