package io.github.wirefence;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.CallableStatement;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Set;
import javax.sql.DataSource;

/**
 * Fences transactions: each one of a thread that has a {@link Lease} begins with the lease's fence, set for the
 * transaction alone, so that nothing stays on a pooled connection. A statement outside a transaction gets one of
 * its own.
 */
public final class FencedDataSource {
    private static final Set<String> ROWS = Set.of("insertRow", "updateRow", "deleteRow"); // of a ResultSet

    /** What leads to statements, and back to the connection. */
    private static final List<Class<?>> LEADING = List.of(
            CallableStatement.class, PreparedStatement.class, Statement.class, ResultSet.class, DatabaseMetaData.class);

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
                return wrap(method, call(target, method, args));
            } finally {
                switch (method.getName()) { // a rollback to a savepoint takes back what was set behind it
                    case "commit", "rollback", "setAutoCommit" -> set = null;
                    default -> { }
                }
            }
        }

        Object wrap(Method method, Object result) {
            if (method.getName().equals("unwrap")) {
                return result;
            }
            if (result instanceof Connection) {
                return shown;
            }
            for (Class<?> type : LEADING) {
                if (type.isInstance(result)) {
                    return show(type, (inner, args) -> wrap(inner, inner(result, inner, args)));
                }
            }
            return result;
        }

        Object inner(Object of, Method method, Object[] args) throws Throwable {
            boolean writes = method.getName().startsWith("execute") || ROWS.contains(method.getName());
            String fence = writes ? Lease.current() : "";
            if (fence.isEmpty()) {
                return call(of, method, args);
            }
            if (!target.getAutoCommit()) {
                begin(fence);
                return call(of, method, args);
            }
            if (of instanceof Statement statement) {
                statement.setFetchSize(0); // a cursor would end with the transaction
            }
            target.setAutoCommit(false);
            try {
                begin(fence);
                Object result = call(of, method, args);
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

        void begin(String fence) throws SQLException {
            if (fence.equals(set)) {
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
