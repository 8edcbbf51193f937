import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

import software.amazon.event.ruler.Machine;

/**
 * Times AWS event-ruler over rules and events from files, on one thread: the other half of {@code make bench-match}.
 *
 * <p>Arguments: the file of rules, the file of events, seconds to warm up, rounds to time, and seconds after which no
 * further one begins. Each line of a file is a name, a tab and JSON; an event's name is the rule that has to be among
 * those it matches, or the run fails. Prints {@code compile SECONDS}, then per timed round
 * {@code round WALL_SECONDS CPU_SECONDS}, the latter of the matching thread alone: the JIT compiler and the garbage
 * collector have threads of their own, and the clock of the whole process is too coarse for a short round.
 */
public final class EventRuler {
    private record Named(String name, String json) {}

    private final Machine machine = Machine.builder().build();
    private final List<Named> events;

    private EventRuler(List<Named> rules, List<Named> events) throws Exception {
        this.events = events;
        long start = System.nanoTime();
        for (Named rule : rules) {
            machine.addRule(rule.name(), rule.json());
        }
        System.out.printf("compile %.6f%n", (System.nanoTime() - start) / 1e9);
    }

    public static void main(String[] arguments) throws Exception {
        EventRuler ruler = new EventRuler(read(arguments[0]), read(arguments[1]));
        ruler.check();
        ruler.rounds(Integer.MAX_VALUE, Double.parseDouble(arguments[2]), false);
        ruler.rounds(Integer.parseInt(arguments[3]), Double.parseDouble(arguments[4]), true);
    }

    private void check() throws Exception {
        for (Named event : events) {
            if (!machine.rulesForJSONEvent(event.json()).contains(event.name())) {
                throw new IllegalStateException(event.name() + " is not among the matches of " + event.json());
            }
        }
    }

    private void rounds(int most, double limitSeconds, boolean told) throws Exception {
        long begin = System.nanoTime();
        for (int done = 0; done < most && (done == 0 || seconds(begin) < limitSeconds); done++) {
            long cpu = cpuNanos();
            long wall = System.nanoTime();
            long matches = 0;
            for (Named event : events) {
                matches += machine.rulesForJSONEvent(event.json()).size();
            }
            if (told) {
                System.out.printf("round %.6f %.6f%n", seconds(wall), (cpuNanos() - cpu) / 1e9);
            }
            // Read, so that no compiler may leave the work out.
            if (matches < events.size()) {
                throw new IllegalStateException("only " + matches + " matches for " + events.size() + " events");
            }
        }
    }

    private static double seconds(long since) {
        return (System.nanoTime() - since) / 1e9;
    }

    private static long cpuNanos() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    private static List<Named> read(String file) throws Exception {
        List<Named> found = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(file))) {
            int tab = line.indexOf('\t');
            found.add(new Named(line.substring(0, tab), line.substring(tab + 1)));
        }
        return found;
    }
}
