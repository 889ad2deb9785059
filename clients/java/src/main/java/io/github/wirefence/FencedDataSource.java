package io.github.wirefence;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;

/**
 * Fences transactions: each one of a thread that has a {@link Lease} begins with the lease's fence, set for the
 * transaction alone, so that nothing stays on a pooled connection. A statement outside a transaction gets one of
 * its own.
 */
public final class FencedDataSource {
    private FencedDataSource() {}

    /** Returns a DataSource whose connections are fenced. */
    public static DataSource of(DataSource target) {
        return show(DataSource.class, (method, args) -> {
            Object result = call(target, method, args);
            return result instanceof Connection connection ? new Fenced(connection).shown : result;
        });
    }

    private static final class Fenced {
        final Connection target;
        final Connection shown;
        String set; // the fence of the open transaction

        Fenced(Connection target) {
            this.target = target;
            this.shown = show(Connection.class, this::connection);
        }

        Object connection(Method method, Object[] args) throws Throwable {
            try {
                Object result = call(target, method, args);
                return result instanceof Statement statement
                        ? show(method.getReturnType(), (inner, values) -> statement(statement, inner, values)) : result;
            } finally {
                switch (method.getName()) { // a rollback to a savepoint takes back what was set behind it
                    case "commit", "rollback", "setAutoCommit" -> set = null;
                    default -> { }
                }
            }
        }

        Object statement(Statement statement, Method method, Object[] args) throws Throwable {
            if (method.getName().equals("getConnection")) {
                return shown;
            }
            if (!method.getName().startsWith("execute") || Lease.current().isEmpty()) {
                return call(statement, method, args);
            }
            if (!target.getAutoCommit()) {
                begin();
                return call(statement, method, args);
            }
            statement.setFetchSize(0); // a cursor would end with the transaction
            target.setAutoCommit(false);
            try {
                begin();
                Object result = call(statement, method, args);
                target.commit();
                return result;
            } catch (Throwable e) {
                target.rollback();
                throw e;
            } finally {
                set = null;
                target.setAutoCommit(true);
            }
        }

        void begin() throws SQLException {
            String fence = Lease.current();
            if (fence.isEmpty() || fence.equals(set)) {
                return;
            }
            try (Statement statement = target.createStatement()) { // SET takes no snapshot: SET TRANSACTION may follow
                statement.execute("SET LOCAL wirefence.token = '" + fence + "'"); // which has no quotes
            }
            set = fence;
        }
    }

    private interface Handler {
        Object handle(Method method, Object[] args) throws Throwable;
    }

    private static <T> T show(Class<T> type, Handler handler) {
        return type.cast(Proxy.newProxyInstance(FencedDataSource.class.getClassLoader(), new Class<?>[] {type},
                (proxy, method, args) -> handler.handle(method, args)));
    }

    private static Object call(Object target, Method method, Object[] args) throws Throwable {
        try {
            return method.invoke(target, args);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }
}
