package peers;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;

/** Calls of methods that only the newer of the two client versions has. */
final class Reflected {
    private Reflected() {
    }

    /** The value of a getter, or null in a version without it. */
    static Object get(Object target, String getter) {
        try {
            return target.getClass().getMethod(getter).invoke(target);
        } catch (NoSuchMethodException missing) {
            return null;
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(getter + " of " + target.getClass() + " failed", error);
        }
    }

    static void set(Object target, String setter, Class<?> type, Object value) {
        try {
            target.getClass().getMethod(setter, type).invoke(target, value);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("this client version has no " + setter, error);
        }
    }

    /** Sets a value of an enum that has another package in each version, or is missing in one. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void setEnum(Object target, String setter, String value) {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterTypes()[0].isEnum()) {
                Class<?> type = method.getParameterTypes()[0];
                set(target, setter, type, Enum.valueOf((Class<? extends Enum>) type, value));
                return;
            }
        }
        throw new IllegalStateException("this client version has no " + setter);
    }

    static Object call(Object target, String name, String... arguments) throws Throwable {
        Class<?>[] types = new Class<?>[arguments.length];
        Arrays.fill(types, String.class);
        try {
            return target.getClass().getMethod(name, types).invoke(target, (Object[]) arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }
}
