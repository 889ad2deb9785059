package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// libraryLock is a program that takes a lock with a library, by acquire, extend and release, which it
// answers with yes or no. It gets a URL of Redis or of its table's database, the lock's key, and for how
// many seconds it lasts.
type libraryLock struct {
	name    string
	command []string
	table   *lockTable // nil for a key in Redis
	both    string     // seconds that the lock lasts if the next holder's time decides that, too
}

// lockPrograms is the folder of those that are built: Go's, locks, and Java's classes.
func lockPrograms(t *testing.T) string {
	t.Helper()
	stack.NeedsMore(t, "a build of lock libraries")
	return suite.Built(t, "locks", func(path string) error {
		for _, build := range []*exec.Cmd{
			exec.Command("javac", "-cp", javaLocks, "-d", path, "testdata/locks/SpringLocks.java", "testdata/locks/RedissonLock.java"),
			exec.Command("go", "build", "-C", "testdata/locks", "-o", path+"/locks", "."),
		} {
			if out, err := build.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		return nil
	})
}

// redisLocks are libraries as their users have them.
func redisLocks(programs string) []libraryLock {
	const python = "/usr/bin/python3"
	return []libraryLock{
		{"bsm/redislock", goLock(programs, "redislock"), nil, ""},
		{"go-redsync/redsync", goLock(programs, "redsync"), nil, ""},
		{"redis-py", []string{python, "testdata/locks/redis_py.py", "alone"}, nil, ""},
		{"redis-py in a task of Celery", []string{python, "testdata/locks/redis_py.py", "celery"}, nil, ""},
		{"node-redlock", []string{"node", "testdata/locks/redlock.cjs"}, nil, ""},
		{"Redisson", javaLock(programs, "RedissonLock"), nil, ""},
		{"ShedLock in Redis", javaLock(programs, "SpringLocks", "RedisLockProvider"), nil, ""},
	}
}

func goLock(programs, library string) []string {
	return []string{filepath.Join(programs, "locks"), library}
}

// javaLocks are the libraries of pom.xml.
var javaLocks = filepath.Join(servers.CacheDir(), "java-locks", "*")

// javaLock is the command of a program. A JVM warns on its standard output of figures that it can't share.
func javaLock(programs string, class ...string) []string {
	return append([]string{"java", "-XX:-UsePerfData", "-cp", javaLocks + ":" + programs}, class...)
}
