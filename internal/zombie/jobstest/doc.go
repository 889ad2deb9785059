// Package jobstest plays `wirefence zombie` on jobs as users have them, each under several locks.
// The table of docs/howto/zombie.md has the results. The module has the jobs' dependencies.
package jobstest
