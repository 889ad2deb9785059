// Package queuetest holds the tests of docs/howto/queue.md: River, pg-boss, Graphile Worker and
// the page's own queue, as the page declares and uses them, with workers that are stopped for
// longer than their queue waits. The module has their dependencies.
package queuetest
