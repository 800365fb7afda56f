"""The tasks by name, in the order in which the page shows them. A new one: its file, and a line here."""

from task import Task

from tasks import arithmetic, distillation, experts, picture_keys, pictures, preferences, sorting, tools

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        arithmetic.TASK,
        sorting.TASK,
        experts.TASK,
        preferences.TASK,
        distillation.TASK,
        tools.TASK,
        pictures.TASK,
        picture_keys.TASK,
    )
}
